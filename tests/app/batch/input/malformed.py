"""Inputs that are wrong in every way that is known to happen, from a seed, with what is right about
each: the generator that the tests and `make fuzz` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

_CASES = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, and whether it is to be answered."""

    data: bytes
    valid: bool
    kind: str


@dataclass(frozen=True, slots=True)
class Input:
    """A whole file; ``rows`` pairs the number of each line that is a row with its validity."""

    data: bytes
    rows: list[tuple[int, bool]]
    kinds: frozenset[str]


def line(random: Random) -> Line:
    """One line of a kind drawn by chance."""
    kind = random.choice([*_GOOD, *_BAD])
    return Line({**_GOOD, **_BAD}[kind](random), kind in _GOOD, kind)


def whole(random: Random, lines: int) -> Input:
    """A file of so many lines, some blank, with or without a BOM, LF or CRLF, and a last end."""
    chosen = [line(random) for _ in range(lines)]
    requests = [some for some in chosen if some.kind == "good request"]
    if requests and random.random() < 0.5:
        chosen.append(Line(random.choice(requests).data, False, "duplicate id"))
    end = random.choice((b"\n", b"\r\n"))
    data, rows, number = random.choice((b"", b"\xef\xbb\xbf")), [], 0
    for some in chosen:
        blank = random.choice((0, 0, 0, 1))
        number += 1 + blank
        rows.append((number, some.valid))
        data += (random.choice((b"", b" ", b"\t")) + end) * blank + some.data + end
    if random.random() < 0.5:
        data = data.removesuffix(end)
    return Input(data, rows, frozenset(some.kind for some in chosen))


def _dump(value: object, random: Random) -> bytes:
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode()


def _case(name: str, random: Random) -> Any:
    return random.choice(_CASES[name])


def _row(random: Random) -> bytes:
    number = random.randrange(1000)
    asks = {"prompt": f"What is {number} + {random.randrange(9)}?"}
    talks = {"messages": [{"role": "user", "content": f"Grüße, {number} times"}]}
    return _dump({"n": number, **random.choice((asks, talks))}, random)


def _request(random: Random, more: dict[str, Any], **changes: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": f"Count to {random.randrange(99)}."}], **more}
    row = {"custom_id": f"id-{random.getrandbits(60)}", "method": "POST", "body": body}
    return _dump({**row, "url": "/v1/chat/completions", **changes}, random)


def _cut(random: Random) -> bytes:
    data = _row(random)
    return data[: random.randrange(1, len(data))].rstrip(b" ")


def _flipped(random: Random) -> bytes:
    data = _row(random)
    at = random.randrange(len(data))
    return data[:at] + random.choice((b"\x00", b"\xff", b"\x01")) + data[at:]


def _nested(random: Random) -> bytes:
    depth = random.choice((2000, 100_000))
    return b'{"prompt":' + b"[" * depth + b"]" * depth + b"}"


_GOOD: dict[str, Callable[[Random], bytes]] = {
    "good": _row,
    "good request": lambda random: _request(random, _case("fine", random)),
    "surrogate elsewhere": lambda random: (
        b'{"prompt":"fine","id":"\\ud800%d","\\udfff":1}' % random.randrange(10**9)
    ),
    "escaped nul": lambda random: b'{"prompt":"a\\u0000b"}',
}
_BAD: dict[str, Callable[[Random], bytes]] = {
    "parameter": lambda random: _request(random, _case("parameters", random)),
    "envelope": lambda random: _request(random, {}, **_case("envelopes", random)),
    "wrong type": lambda random: _dump(
        {random.choice(("prompt", "messages")): _case("values", random)}, random
    ),
    "no object": lambda random: _dump(_case("no objects", random), random),
    "message": lambda random: json.dumps({"messages": [_case("messages", random)]}).encode(),
    "text": lambda random: _case("text", random).encode(),
    "many digits": lambda random: b'{"prompt":"x","score":' + b"9" * 5000 + b"}",
    "cut": _cut,
    "flipped": _flipped,
    "nested": _nested,
    "too long": lambda random: b'{"prompt":"' + b"word " * random.choice((3000, 50_000)) + b'"}',
}
