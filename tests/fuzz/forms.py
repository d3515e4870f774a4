"""JSON schemas, grammars, expressions and choices, made piece by piece: chains, cycles, thousands
of rules, huge repetitions."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzz.mutate import CORPUS, TEXTS, mutated, strange

_SIZES = (1, 3, 10, 60, 300, 1000, 3000, 20_000)
_WEIGHTS = (20, 20, 20, 15, 10, 15, 6, 2)
_MOST = 100_000  # characters of an expression
NAMES = ("city", "id", "x-y", "größe", "名前", "a b", 'q"uote', "$ref", "émoji😀", "1")
LEAVES: list[dict[str, Any]] = json.loads((CORPUS / "leaves.json").read_text("utf-8"))


def _size(random: Random, most: int = 20_000) -> int:
    """Mostly small: large ones take long to make."""
    return min(most, random.choices(_SIZES, _WEIGHTS)[0])


def schema(random: Random, depth: int = 3) -> Any:
    """A schema, whole or with something wrong in it."""
    match random.randrange(12):
        case 0 | 8:
            return _chain(random)
        case 1:
            return _cycle(random)
        case 2:
            return _wide(random)
        case 3:
            return mutated(plain(random, depth), random)
        case 4:
            return {"type": "string", "pattern": expression(random)}
        case 5:
            least = random.choice((0, 1, 1000, 10**6, 10**9, 2**63, 10**30, -1))
            kind, low, high = random.choice(
                (
                    ("string", "minLength", "maxLength"),
                    ("array", "minItems", "maxItems"),
                    ("integer", "minimum", "maximum"),
                    ("object", "minProperties", "maxProperties"),
                )
            )
            return {"type": kind, low: least, high: least + random.choice((0, 1, 10**6, -5))}
        case 6:
            key = random.choice(("allOf", "anyOf", "oneOf"))
            return {key: [plain(random, 1) for _ in range(_size(random, 300))]}
        case 7:
            return strange(random)
        case _:
            return plain(random, depth)


def plain(random: Random, depth: int) -> dict[str, Any]:
    """A schema that is whole."""
    kind = random.random() if depth > 0 else 1
    if kind < 0.2:
        items = plain(random, depth - 1)
        return {"type": "array", "items": items, "minItems": 1, "maxItems": random.randrange(1, 4)}
    if kind < 0.4:
        names = random.sample(NAMES, 3)
        made: dict[str, Any] = {"type": "object", "required": names[: random.randrange(3)]}
        made["properties"] = {name: plain(random, depth - 1) for name in names}
        if random.random() < 0.6:
            made["additionalProperties"] = random.choice((True, False, {"type": "string"}))
        return made
    return dict(random.choice(LEAVES))


def _chain(random: Random) -> dict[str, Any]:
    """a0 is a1 is a2 and so on."""
    count = _size(random)
    key = random.choice(("$defs", "definitions"))
    how = random.choice(("plain", "property", "items", "anyOf"))
    inner = {}
    for number in range(count):
        ref: dict[str, Any] = {"$ref": f"#/{key}/a{number + 1}"}
        inner[f"a{number}"] = {
            "plain": ref,
            "property": {"type": "object", "properties": {"x": ref}, "required": ["x"]},
            "items": {"type": "array", "items": ref, "minItems": 1},
            "anyOf": {"anyOf": [ref, {"type": "null"}]},
        }[how]
    inner[f"a{count}"] = {"type": "string"}
    return {"$ref": f"#/{key}/a0", key: inner}


def _cycle(random: Random) -> dict[str, Any]:
    count = random.choice((1, 2, 5, 300))
    inner = {f"a{n}": {"$ref": f"#/$defs/a{(n + 1) % count}"} for n in range(count)}
    return random.choice(
        (
            {"$ref": "#"},
            {"$ref": "#/$defs/a0", "$defs": inner},
            {"$ref": random.choice(("http://127.0.0.1:1/x.json", "file:///etc/passwd", "#/x", ""))},
            {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        )
    )


def _wide(random: Random) -> dict[str, Any]:
    count = _size(random, 3000)
    names = [f"p{number}" for number in range(count)]
    required = names if random.random() < 0.5 else []
    return random.choice(
        (
            {"type": "object", "properties": {name: {} for name in names}, "required": required},
            {"enum": names},
            {"type": "object", "patternProperties": {f"^{name}": {} for name in names[:300]}},
            {"const": names},
        )
    )


def expression(random: Random) -> str:
    """A regular expression."""
    return _expression(random, 4)[:_MOST]


def _expression(random: Random, depth: int) -> str:
    if depth <= 0 or random.random() < 0.2:
        letters = "a b . \\d \\w [a-z] [^\\x00-\\x20] é 💡 \\p{L} \\b ^ $ [ ( \\ (?=a) (?i) \\1 []"
        return random.choice(letters.split())
    inner = _expression(random, depth - 1)[:_MOST]
    match random.randrange(8):
        case 0:
            return f"({inner}){random.choice('*+?')}"
        case 1:
            least = random.choice((0, 1, 2, 50, 1000, 60_000, 10**9))
            return f"({inner}){{{least},{random.choice(('', least, least * 2))}}}"
        case 2:
            return "|".join([inner, *(f"w{n}" for n in range(_size(random, 1000)))])
        case 3:
            return "(" * random.choice((1, 50, 1000)) + inner + ")" * random.choice((1, 50, 1000))
        case 4:
            return inner * random.choice((2, 30, 1000))
        case 5:
            return random.choice(TEXTS) + inner
        case _:
            return inner + _expression(random, depth - 1)


def grammar(random: Random) -> str:
    """A grammar in Lark's form, as llguidance reads it."""
    count = _size(random, 3000)
    match random.randrange(7):
        case 0:
            rules = [f"r{n}: r{n + 1}" for n in range(count)]
            return "\n".join(["start: r0", *rules, f'r{count}: "x"'])
        case 1:
            rules = [f'r{n}: "a" r{(n * 7 + 1) % count} | r{(n * 3) % count}' for n in range(count)]
            return "\n".join(["start: r0", *rules])
        case 2:
            tops = " | ".join(f"T{n}" for n in range(count))
            return "\n".join([f"start: {tops}", *(f"T{n}: /w{n}[a-z]*/" for n in range(count))])
        case 3:
            return "start: " + "(" * count + '"x"' + ")" * count
        case 4:
            return f"start: /{expression(random).replace('/', '')}/"
        case 5:
            repeat = random.choice(("{1000}", "{0,100000}", "{5,1}", "+" * 30, "~10**9"))
            return f'start: item{repeat}\nitem: "a" | "b" item'
        case _:
            odd = random.choice(("start: start", "start:", "", 'begin: "x"', "%llguidance {}"))
            return random.choice((odd, odd + random.choice(TEXTS), f'start: "{TEXTS[14]}"'))


def choices(random: Random) -> list[Any]:
    """Texts to choose from."""
    match random.randrange(4):
        case 0:
            return [f"choice {number}" for number in range(_size(random))]
        case 1:
            return ["a" * n for n in range(_size(random, 300))]
        case 2:
            return [random.choice(TEXTS) for _ in range(3)]
        case _:
            return [strange(random) for _ in range(2)]
