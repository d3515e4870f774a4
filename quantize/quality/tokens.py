"""Token gate: a conversion is wrong until its tokens equal the original's.

Fresh vocabularies fail silently otherwise: the file loads, answers, and is a little worse. The
lines show where tokenizers differ: pre-tokenizers at digits, contractions, runs of whitespace and
letters outside Latin; normalizers at combining and full-width characters; byte fallback at whatever
is not in the vocabulary; special tokens at their neighbours' spaces.
"""

import contextlib
import functools
import json
import random
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from quantize.children import report_step, run_child
from quantize.errors import TokenMismatchError
from quantize.manifest import TokenParity
from quantize.source import SourceModel
from runtimes.models.gguf import read_header
from runtimes.models.registry import read_model, tokenizer_of
from runtimes.runner import Tokenizer

Ids = list[int]
Meanings = Mapping[str, str]  # what ids stand for
Messages = list[dict[str, str]]

# Lines by what they try, and conversations of one and more turns.
_PARITY = Path(__file__).resolve().parents[1] / "data" / "parity.json"
# First and last code points: space, Latin, Greek to Greek Extended.
_BLOCKS = ((0x20, 0x20), (0xA1, 0x2FF), (0x370, 0x1FFF))


@functools.cache
def _tried() -> Any:
    return json.loads(_PARITY.read_bytes())


def parity_lines(special_tokens: Sequence[str]) -> list[str]:
    """300 and more different lines; ``special_tokens`` are mixed in by name."""
    lines = [line for group in _tried()["lines"].values() for line in group]
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


def parity_conversations() -> list[Messages]:
    """Conversations of one and more turns, with and without a system message."""
    found: list[Messages] = _tried()["conversations"]
    return found


_WITH_SPECIAL = 40  # lines that are also encoded with the model's BOS and EOS
_SHOWN = 3  # differing lines in an error
_LINE = 100  # characters of such a line
_BEFORE, _AFTER = 3, 8  # ids of it that are shown, from its first other id on


@dataclass(frozen=True, slots=True)
class Reference:
    """Readings by the original tokenizer: ``ids`` of the test lines, of the first of them with BOS
    and EOS, and of the conversations."""

    lines: list[str]
    chats: list[Messages]
    ids: list[Ids]
    normal_form: str | None = None
    texts: dict[str, str] = field(default_factory=dict)  # what each of the ids stands for
    pre_tokenizer: str = ""  # how it splits text first
    template: str | None = None  # of conversations


@dataclass(frozen=True, slots=True)
class Difference:
    """One text that came out differently."""

    text: str
    original: Ids
    built: Ids


@dataclass(frozen=True, slots=True)
class TokenComparison:
    """A built file's tokenizer against the original."""

    compared: int
    differences: tuple[Difference, ...]
    note: str | None = None  # what was left out and why
    # By the original and by the file: what ids stand for, how text is split before the vocabulary.
    texts: tuple[Meanings, Meanings] = ({}, {})
    split: tuple[str, str] = ("", "")

    @property
    def parity(self) -> TokenParity:
        """The two numbers for the manifest."""
        return TokenParity(lines=self.compared, differences=len(self.differences))


def compare_built(path: Path, reference: Reference, work: Path) -> TokenComparison:
    """Compare the tokenizer of a GGUF file or ONNX folder with the original."""
    call = partial(_built, path, reference)
    built, found = run_child(call, f"tokenizing with {path.name}", work)
    texts = [
        *reference.lines,
        *(f"{line} (with BOS/EOS)" for line in reference.lines[:_WITH_SPECIAL]),
        *(f"chat: {messages}" for messages in reference.chats),
    ]
    is_gguf = path.is_file()
    return replace(
        _compare(texts, reference.ids, built, reference.normal_form if is_gguf else None),
        texts=(reference.texts, found),
        split=(reference.pre_tokenizer, _named_pre_tokenizer(path) if is_gguf else ""),
    )


def compare_vocabulary(path: Path, reference: Reference, work: Path) -> TokenComparison:
    """Compare a GGUF file that holds the vocabulary alone."""
    call = partial(_vocabulary, path, reference.lines)
    built = run_child(call, "tokenizing with the converted vocabulary", work)
    lines = reference.lines
    return _compare(lines, reference.ids[: len(lines)], built, reference.normal_form)


def require_parity(comparison: TokenComparison, name: str) -> None:
    """Raise TokenMismatchError showing where the first lines differ, if any do, and what splits
    text in both."""
    if not comparison.differences:
        return
    shown = shown_differences(comparison, name)
    original, named = comparison.split
    why = f"\nThe original splits text by {original} first." if original else ""
    if named:
        why += (
            f"\n{name} splits it by {named!r}: llama.cpp knows pre-tokenizers by name, and this is"
            " the one that its converter recognised, or else the nearest. Is tokenizer.json as the"
            " model was published? Programs that rewrite it may lose a step, such as the"
            " splitting of digits. ONNX files keep tokenizer.json: --to onnx builds them."
        )
    raise TokenMismatchError(
        f"{name}: {len(comparison.differences)} of {comparison.compared} test lines give other"
        f" tokens than the original tokenizer, so its answers would be worse than they need be.\n"
        f"The first ones, around their first other token:\n{shown}{why}\n"
        "Nothing was published for it; --allow-token-mismatch publishes it all the same"
    )


def shown_differences(comparison: TokenComparison, name: str) -> str:
    """The first lines that differ, as both tokenizers split them."""
    return "\n".join(_shown(d, comparison.texts, name) for d in comparison.differences[:_SHOWN])


def first_apart(one: Sequence[object], other: Sequence[object]) -> int:
    """The first position at which they differ; where the shorter one ends if none does."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), shorter)


def _shown(difference: Difference, texts: tuple[Meanings, Meanings], name: str) -> str:
    """A line and, by both tokenizers, what stands around the first id that differs."""
    original, built = difference.original, difference.built
    first = first_apart(original, built)
    line = repr(difference.text[:_LINE]) + " ..." * (len(difference.text) > _LINE)
    return (
        f"  {line}, token {first + 1}\n"
        f"    original: {_around(original, first, texts[0])}\n"
        f"    {name}: {_around(built, first, texts[1])}"
    )


def _around(ids: Sequence[int], first: int, texts: Meanings) -> str:
    """Ids with their texts from shortly before the position ``first`` on."""
    begin, end = max(0, first - _BEFORE), first + _AFTER
    known = [(token, texts.get(str(token))) for token in ids[begin:end]]
    said = [f"{token} {text!r}" if text is not None else str(token) for token, text in known]
    more = ["..."] * (end < len(ids)) if ids[first:] else ["(ends here)"]
    return " ".join([*(["..."] * (begin > 0)), *said, *more])


def _named_pre_tokenizer(path: Path) -> str:
    """Name in a GGUF file of how text is split before its vocabulary does it."""
    found = read_header(path).metadata
    kind = found.get("tokenizer.ggml.pre") or found.get("tokenizer.ggml.model")
    return str(kind or "no name")


def _compare(
    texts: Sequence[str],
    original: Sequence[Ids],
    built: Sequence[Ids],
    form: str | None,
) -> TokenComparison:
    """The Unicode normal ``form`` leaves out lines that the original tokenizer rewrites first.

    llama.cpp's vocabulary has no normalizer, so that text in another form than the one a tokenizer
    was trained on is split differently whatever the file says.
    """
    kept = [
        Difference(text, want, got)
        for text, want, got in zip(texts, original, built, strict=True)
        if form is None or unicodedata.is_normalized(form, text)  # type: ignore[arg-type]
    ]
    left_out = len(texts) - len(kept)
    return TokenComparison(
        compared=len(kept),
        differences=tuple(line for line in kept if line.original != line.built),
        note=f"{left_out} lines that are not in Unicode form {form} were not compared:"
        " llama.cpp does not normalize text"
        if left_out
        else None,
    )


# What follows runs in child processes.


def read_reference(source: SourceModel) -> Reference:
    """Lines, conversations and their ids by the tokenizer of ``source``."""
    if source.kind == "gguf":
        return _gguf_reference(source.weights[0])
    report_step("loading the tokenizer")
    tokenizer = source.tokenizer()
    report_step("encoding the test lines")
    added = {str(token): token_id for token_id, token in tokenizer.added_tokens_decoder.items()}
    lines = parity_lines(list(dict.fromkeys([*tokenizer.all_special_tokens, *added])))
    chats, chat_ids = [], []
    for messages in parity_conversations() if tokenizer.chat_template else []:
        try:
            ids = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except Exception:  # the template refuses the conversation, say for its system message
            continue
        chats.append(messages)
        chat_ids.append([int(token) for token in ids])
    plain = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
    special = [tokenizer(line).input_ids for line in lines[:_WITH_SPECIAL]]
    found = [*plain, *special, *chat_ids]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = repr(getattr(backend, "normalizer", None))
    split = json.loads(backend.to_str())["pre_tokenizer"] if backend else None
    template = tokenizer.chat_template
    return Reference(
        lines,
        chats,
        found,
        next((form for form in ("NFKC", "NFKD", "NFC", "NFD") if form in normalizer), None),
        _meanings(found, lambda token: tokenizer.decode([token])),
        _step(split) if split else "none",
        template.get("default") if isinstance(template, dict) else template,
    )


def _gguf_reference(path: Path) -> Reference:
    """By a GGUF file of floats, which is its own original."""
    from runtimes.chat import encode_chat
    from runtimes.errors import RequestError

    model = read_model(path)
    tokenizer, template = tokenizer_of(model), model.chat_template
    ends = [tokenizer.token_bytes(id).decode(errors="replace") for id in sorted(tokenizer.eos_ids)]
    lines = parity_lines(list(dict.fromkeys(filter(None, (tokenizer.bos_token, *ends)))))
    chats = []
    for messages in parity_conversations() if template else []:
        with contextlib.suppress(RequestError):
            encode_chat(tokenizer, template, messages)
            chats.append(messages)
    named = Reference(lines, chats, [], pre_tokenizer=_named_pre_tokenizer(path), template=template)
    return replace(named, ids=_read(tokenizer, template, named))


def _built(path: Path, reference: Reference) -> tuple[list[Ids], dict[str, str]]:
    """Ids as `Reference` has them, and what they stand for, by the tokenizer that the runtime uses
    for the GGUF file or ONNX folder ``path``."""
    model = read_model(path)
    tokenizer = tokenizer_of(model)
    found = _read(tokenizer, model.chat_template, reference)
    meanings = _meanings(found, lambda id: tokenizer.token_bytes(id).decode(errors="replace"))
    return found, meanings


def _read(tokenizer: Tokenizer, template: str | None, reference: Reference) -> list[Ids]:
    from runtimes.chat import encode_chat

    special = reference.lines[:_WITH_SPECIAL]
    return [
        *(tokenizer.encode(line) for line in reference.lines),
        *(tokenizer.encode(line, add_special=True) for line in special),
        *(encode_chat(tokenizer, template, messages) for messages in reference.chats),
    ]


def _vocabulary(path: Path, lines: list[str]) -> list[Ids]:
    """Ids by a GGUF file that holds a vocabulary and no weights."""
    from runtimes.llamacpp.tokenizer import LlamaTokenizer

    tokenizer = LlamaTokenizer.load(path)
    return [tokenizer.encode(line) for line in lines]


def _meanings(rows: Iterable[Ids], text: Callable[[int], str]) -> dict[str, str]:
    """Tokens that stand for whole characters, by their id."""
    texts = ((token, text(token)) for token in {token for row in rows for token in row})
    return {str(token): said for token, said in texts if said and "\ufffd" not in said}


def _step(step: dict[str, Any]) -> str:
    """A step of tokenizer.json, such as "Sequence[Digits(individual_digits=true), ByteLevel]"."""
    parts = step.get("pretokenizers")
    if parts is not None:
        return f"{step['type']}[{', '.join(map(_step, parts))}]"
    options = (f"{name}={json.dumps(value)}" for name, value in step.items() if name != "type")
    return f"{step['type']}({', '.join(options)})"
