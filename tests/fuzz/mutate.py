"""Mutations of JSON values, and of bytes."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

CORPUS = Path(__file__).parent / "corpus"  # good bodies and files, and strange values
_MARK = re.compile(r'"@raw(\d+)@"')
_REPEATED = re.compile(r"@again\d+@")

VALUES: dict[str, list[Any]] = json.loads((CORPUS / "values.json").read_bytes())
TEXTS: list[str] = [*VALUES["texts"], "9" * 5000, "x" * 65_536]
NUMBERS: list[float] = VALUES["numbers"]
RAW: list[str] = [*VALUES["raw"], "9" * 5000]


class Raw(str):
    """A piece of JSON text, put into the body as it is."""

    __slots__ = ()


def strange(random: Random) -> Any:
    """A value that nobody expects."""
    match random.randrange(8):
        case 0 | 1:
            return random.choice(TEXTS)
        case 2 | 3:
            return random.choice(NUMBERS)
        case 4:
            return random.choice((None, True, False, [], {}, [[]], [None], {"": None}, [{}]))
        case 5:
            return Raw(random.choice(RAW))
        case 6:
            return nested(random)
        case _:
            return random.choice(
                (
                    {random.choice(TEXTS): random.choice(TEXTS)},
                    [random.choice(NUMBERS)] * random.choice((2, 100, 3000)),
                    {f"k{i}": i for i in range(random.choice((20, 500)))},
                    [random.choice(TEXTS[:12])] * random.choice((3, 70, 300)),
                )
            )


def nested(random: Random) -> Raw:
    """Lists and objects within each other."""
    depth = int(random.choice((10, 63, 64, 65, 200, 480, 900, 1100, 3000, 50_000)))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}"), ('[{"items":', "}]")))
    return Raw(opening * depth + random.choice(("1", '"x"', "{}", "null")) + closing * depth)


def mutated(value: Any, random: Random, others: Sequence[Any] = ()) -> Any:
    """``value`` with one to three changes; ``others`` are values that pieces may come from."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return strange(random)
        _change(random.choice(places), random, others)
    return value


def _places(value: Any) -> Any:
    """Each container with one of its keys."""
    level = [value]
    while level:
        one = level.pop()
        keys = one.keys() if isinstance(one, dict) else range(len(one))
        for key in keys:
            yield one, key
            if isinstance(one[key], (dict, list)):
                level.append(one[key])


def _change(place: tuple[Any, Any], random: Random, others: Sequence[Any]) -> None:
    within, key = place
    found = within[key]
    match random.randrange(11):
        case 0 | 1 | 2:
            within[key] = strange(random)
        case 3:
            del within[key]
        case 4 if isinstance(within, dict):
            within[f"{key}@again{random.randrange(9)}@"] = strange(random)
        case 4:
            within.extend([found] * random.choice((1, 3, 70, 300)))
        case 5:
            name = random.choice(
                ("x_unknown", "", "\ud800", "__proto__", "type", "a" * 300, "$ref")
            )
            if isinstance(within, dict):
                within[name] = random.choice((found, strange(random)))
            else:
                within.insert(random.randrange(len(within) + 1), strange(random))
        case 6:
            within[key] = random.choice(([found], {"a": found}, [[found]], str(found)[:200]))
        case 7 if others:
            inner = random.choice(others)
            places = list(_places(inner)) if isinstance(inner, (dict, list)) else []
            holder, name = random.choice(places) if places else ([inner], 0)
            within[key] = copy.deepcopy(holder[name])
        case 8 if isinstance(found, str):
            at = random.randrange(len(found) + 1)
            within[key] = found[:at] + random.choice(TEXTS) + found[at:]
        case 9 if isinstance(found, (int, float)) and abs(found) < 1e300:
            within[key] = random.choice(
                (found + 1, -found, found * 1000, found - 0.5, str(found)[:400])
            )
        case _:
            within[key] = random.choice(NUMBERS if isinstance(found, (int, float)) else TEXTS)


def dumped(value: Any, random: Random) -> bytes:
    """As JSON, with raw pieces and repeated keys."""
    raws: list[str] = []

    def plain(one: Any) -> Any:
        if isinstance(one, Raw):
            raws.append(str(one))
            return f"@raw{len(raws) - 1}@"
        if isinstance(one, dict):
            return {name: plain(inner) for name, inner in one.items()}
        return [plain(inner) for inner in one] if isinstance(one, list) else one

    text = json.dumps(plain(value), ensure_ascii=random.random() < 0.7)
    text = _REPEATED.sub("", text)
    text = _MARK.sub(lambda found: raws[int(found[1])], text)
    return text.encode("utf-8", "surrogatepass")


def damaged(data: bytes, random: Random) -> bytes:
    """Bytes that were cut, flipped, repeated or are of another encoding."""
    if not data:
        return random.randbytes(8)
    at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    match random.randrange(10):
        case 0:
            return data[:at]
        case 1 | 2 | 3:
            flipped = bytearray(data)
            for _ in range(random.choice((1, 1, 2, 8, 64))):
                flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
            return bytes(flipped)
        case 4:
            return data[:at] + data[end:]
        case 5:
            return data[:end] + data[at:end] * random.choice((1, 2, 50)) + data[end:]
        case 6:
            return data[:at] + random.randbytes(random.choice((1, 4, 100))) + data[at:]
        case 7:
            return data[:at] + bytes(end - at) + data[end:]
        case 8:
            return data[:at] + random.choice((b"\xff" * 16, b"\xed\xa0\x80", b"\n", b"\0", b'"'))
        case _:
            packed = gzip.compress(data, 1)
            return random.choice((b"\xef\xbb\xbf" + data, packed, packed[: len(packed) // 2], b""))
