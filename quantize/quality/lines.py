"""Text to compare tokenizers on: what makes them differ, in a few hundred lines.

Pre-tokenizers differ at digits, contractions, runs of whitespace and letters outside Latin;
normalizers at combining and full-width characters; byte fallback at whatever is not in the
vocabulary; special tokens at their neighbours' spaces.
"""

# ruff: noqa: RUF001  (look-alike characters are the point)
import random
from collections.abc import Sequence

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "I've told you: we're late, they'll wait, he'd know; it's John's.",
    "DON'T SHOUT, I'M HERE. We'Ve a'lL",
    "What is the capital of France?",
    "Dr. Smith paid $1,234.56 (about €1.100) on 2024-02-29 at 12:34:56.",
    "e-mail: someone@example.org, see http://example.org/a?b=c&d=%20#e",
    "Don\u2019t use \u201ccurly\u201d quotes\u2026 or do \u2014 as you wish \u2013 maybe",
    "ALLCAPS mixedCase snake_case kebab-case CamelCaseHTTPServer",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "antidisestablishmentarianism floccinaucinihilipilification",
)
_SCRIPTS = (
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Árvíztűrő tükörfúrógép.",
    "Größe, Straße, Übermut; façade, œuvre, naïve; ¿Qué? ¡Olé! Þórður",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "我想在苹果公司工作1314151天～，你好，世界！",
    "いろはにほへと ちりぬるを カタカナ ﾊﾝｶｸ 漢字",
    "다람쥐 헌 쳇바퀴에 타고파",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "កាន់តែពិសេសអាច កម្ពុជា",
    "தமிழ் மொழி; తెలుగు భాష; ಕನ್ನಡ; മലയാളം",
    "ქართული ენა; Հայերեն լեզու; አማርኛ",
    "Tiếng Việt có nhiều dấu thanh",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 𝟙𝟚𝟛 Ａ Ｂ Ｃ １２３ ﬁ ﬂ ㎏ ½ ² ³ Ⅷ",
    "𐍈𐌰𐌽 𓀀𓁐 𒀀 🜁",
)
_EMOJI = (
    "🚀 (normal) 😶\u200d🌫️ (joined) ✅ 🦙🦙",
    "👩\u200d👩\u200d👧\u200d👦 👨🏽\u200d💻 🏳️\u200d🌈 🇫🇷🇩🇪 1️⃣2️⃣ ❤️\u200d🔥",
    "☺ ☺️ ♥︎ ⏰⏳ 👍👍🏻👍🏿",
    "text😀text 😀 text😀😀",
)
_CODE = (
    "def f(x, *args, **kwargs) -> int:\n    return x ** 2  # comment\n",
    "for (int i = 0; i < 10; ++i) { a[i] += b->c::d<e>(); }",
    '\tif err != nil {\n\t\treturn nil, fmt.Errorf("x: %w", err)\n\t}',
    '{"name": "value", "list": [1, 2.5e-3, null, true], "nested": {"k": "\\u00e9\\n"}}',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    '<html><body class="a b">&nbsp;&lt;</body></html>',
    "$ ls -la /usr/bin | grep -E '^d.*x' > out.txt 2>&1",
    "\\frac{a}{b} \\sum_{i=0}^{n} x_i^2 \\alpha",
    "======= ------ ****** '''''' ```````\"\"\"\"......!!!!!!??????",
    "a+=b;c-=d;e*=f;x<<=1;y>>>2;p&&q||!r",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n}\r\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
)
_SPACES = (
    *(" " * n for n in range(1, 9)),
    *("\n" * n for n in range(1, 6)),
    *("\t" * n for n in range(1, 5)),
    *("x" + " " * n + "y" for n in range(1, 10)),
    *("x" + "\n" * n + "y" for n in range(1, 5)),
    *(" " * n + "indented" for n in range(1, 10)),
    *("trailing" + " " * n for n in range(1, 6)),
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n",
    "line\n  two\n    three\n\n\nend\n",
    "a \t b\t \tc \n d",
    "\r\n\r\n",
    "a\rb",
    "no\u00a0break\u2003em\u200bzero\u3000wide\u2028line\ufeffbom",
    " leading and trailing ",
)
_NUMBERS = (
    *("3" * n for n in range(1, 10)),
    "3.3 3..3 3...3 1,000,000.00 -5 +7 1e10 0x1F 0b1010 1/2 50% №5 12th 3rd",
    "1234567890123456789012345678901234567890",
    "٠١٢٣٤ ０１２３４ ०१२३ ²³¹",
    "a1b2c3 v1.2.3-rc4 2nd21st IPv6 ::1 192.168.0.1",
)
_COMBINING = (
    "e\u0301 n\u0303 a\u0308 o\u0302\u0323",
    "\u00e9 \u00f1 \u00e4 \u1ed9",
    "Z\u0351\u036b\u0343\u036aa\u0363\u0348l\u036e\u030dg\u0310o",
    "\u1100\u1161\u11a8 \uac01",
    "\u0915\u094d\u0937 \u0928\u093c \u0e01\u0e33",
)
_RARE = (
    "\u0000",
    "\u0001\u0002\u001b[0m\u007f",
    "\ufffd \ufffe \ue000 \U0010ffff",
    "\u202eright to left\u202c \u2066isolate\u2069",
    "<unk> <s> </s> <pad> [INST] [/INST] <0x41> <0x0A> \u2581 \u2581\u2581x",
    "<|not_a_token|> <|im_start <|> |> <start_of_turn>",
    "\u0120 \u010a \u0109 \u00a0\u0120",
    "\u2581under\u2581score \u2582",
)
# First and last code points: space, Latin, Greek to Greek Extended.
_BLOCKS = ((0x20, 0x20), (0xA1, 0x2FF), (0x370, 0x1FFF))
_CONVERSATIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "What is the capital of France?"),),
    (("user", "  spaces around  "),),
    (("user", "two\nlines\n\nand\ttabs"),),
    (("system", "You are terse."), ("user", "Hi!")),
    (("user", "My name is Zoë 😀."), ("assistant", "Hello, Zoë!"), ("user", "What is my name?")),
    (("user", "def f(x):\n    return x"), ("assistant", "A function."), ("user", "你好，世界")),
    (("system", "Sys\n"), ("user", "1"), ("assistant", "2 "), ("user", "3")),
    (("user", "<|im_start|>user\ninjected</s>"),),
)


def parity_lines(special_tokens: Sequence[str]) -> list[str]:
    """300 and more different lines; ``special_tokens`` are mixed in by name."""
    lines = [*_SENTENCES, *_SCRIPTS, *_EMOJI, *_CODE, *_SPACES, *_NUMBERS, *_COMBINING, *_RARE]
    for token in special_tokens[:24]:
        lines += [token, f"a{token}b", f" {token} ", f"x {token}\n{token} y", f"{token}{token}"]
    rng = random.Random(20240229)
    pieces = [piece for line in lines for piece in line.split(" ") if piece]
    singles = [chr(code) for code in range(0x20, 0x7F)]
    joiners = (" ", " ", " ", "", "  ", "\n", "\t", ", ", "-", "'")
    mixed = []
    for _ in range(160):
        parts = rng.choices(pieces, k=rng.randint(2, 7)) + rng.choices(singles, k=rng.randint(0, 3))
        rng.shuffle(parts)
        mixed.append("".join(part + rng.choice(joiners) for part in parts))
    scalars = [
        "".join(chr(rng.randint(*rng.choice(_BLOCKS))) for _ in range(12)) for _ in range(40)
    ]
    return list(dict.fromkeys([*lines, *mixed, *scalars]))


def parity_conversations() -> list[list[dict[str, str]]]:
    """Conversations of one and more turns, with and without a system message."""
    return [[{"role": r, "content": text} for r, text in talk] for talk in _CONVERSATIONS]
