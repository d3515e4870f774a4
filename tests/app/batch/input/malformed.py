"""Inputs that are wrong in every way that is known to happen, from a seed, with what is right about
each: the generator that the tests and `python -m tests.app.batch.input.fuzz` share."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"
_WRONG = (None, True, 0, -1, 1.5, "", " \n", [], {}, [[]], [None], {"a": 1}, 2**70, "x", ["", "y"])


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


def line(random: random.Random) -> Line:
    """One line of a kind drawn by chance."""
    kind, make = random.choice(_KINDS)
    data, valid = make(random)
    return Line(data, valid, kind)


def whole(random: random.Random, lines: int) -> Input:
    """A file of so many lines, some blank, with or without a BOM, LF or CRLF, and a last end."""
    chosen = [line(random) for _ in range(lines)]
    requests = [some for some in chosen if some.kind == "good request"]
    if requests and random.random() < 0.5:
        chosen.append(Line(random.choice(requests).data, False, "duplicate id"))
    end = random.choice((b"\n", b"\r\n"))
    data, rows = bytearray(random.choice((b"", BOM))), []
    number = 0
    for some in chosen:
        while random.random() < 0.1:
            data += random.choice((b"", b" ", b"\t")) + end
            number += 1
        number += 1
        rows.append((number, some.valid))
        data += some.data + end
    if random.random() < 0.5:
        del data[-len(end) :]
    return Input(bytes(data), rows, frozenset(some.kind for some in chosen))


def _dump(value: object, random: random.Random) -> bytes:
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode()


def _good(random: random.Random) -> tuple[bytes, bool]:
    number = random.randrange(1000)
    row: dict[str, object] = {"n": number}
    if random.random() < 0.5:
        row["prompt"] = f"What is {number} + {random.randrange(9)}?"
    else:
        row["messages"] = [{"role": "user", "content": f"Grüße, {number} times"}]
    return _dump(row, random), True


def _request_body(random: random.Random) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": f"Count to {random.randrange(99)}."}]}


def _request(random: random.Random, body: object, **changes: object) -> bytes:
    row = {
        "custom_id": f"id-{random.getrandbits(60)}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return _dump({**row, **changes}, random)


def _good_request(random: random.Random) -> tuple[bytes, bool]:
    extra = random.choice(
        ({}, {"max_tokens": 3}, {"temperature": 0.7, "seed": 5}, {"stop": "."}, {"stream": False})
    )
    return _request(random, {**_request_body(random), **extra}), True


def _bad_parameter(random: random.Random) -> tuple[bytes, bool]:
    extra = random.choice(
        (
            {"stream": True},
            {"tools": [{"type": "function"}]},
            {"response_format": {"type": "xml"}},
            {"temperature": -3},
            {"temperature": "hot"},
            {"temperature": 10**300},
            {"max_tokens": 0},
            {"max_tokens": 2**63},
            {"max_completion_tokens": 1.5},
            {"top_p": 0},
            {"n": 10**6},
            {"n": True},
            {"stop": [1]},
            {"stop": ""},
            {"seed": 2**64},
            {"presence_penalty": 9},
            {"logit_bias": {"x": 1}},
            {"logit_bias": {"5": 1e9}},
            {"logit_bias": {"99999999": 1}},
            {"logprobs": 3},
            {"top_logprobs": 2},
            {"logprobs": True, "top_logprobs": 21},
            {"frobnicate": 1},
        )
    )
    return _request(random, {**_request_body(random), **extra}), False


def _bad_request(random: random.Random) -> tuple[bytes, bool]:
    body = _request_body(random)
    return random.choice(
        (
            _request(random, body, method="GET"),
            _request(random, body, url="/v1/embeddings"),
            _request(random, body, url=None),
            _request(random, body, custom_id=""),
            _request(random, body, custom_id=7),
            _request(random, random.choice(("text", None, [], 3))),
            _request(random, {"messages": random.choice(_WRONG)}),
            _request(random, {}),
        )
    ), False


def _wrong_type(random: random.Random) -> tuple[bytes, bool]:
    value = random.choice([wrong for wrong in _WRONG if wrong != "x"])
    return _dump({random.choice(("prompt", "messages")): value}, random), False


def _no_object(random: random.Random) -> tuple[bytes, bool]:
    return _dump(random.choice([1, "text", None, True, [], [{"prompt": "x"}], 1.5]), random), False


def _bad_message(random: random.Random) -> tuple[bytes, bool]:
    message = random.choice(
        (
            {"role": "robot", "content": "x"},
            {"role": "user"},
            {"content": "x"},
            {"role": "user", "content": None},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
            {"role": ["user"], "content": "x"},
            {"role": "user", "content": "\ud83d"},
        )
    )
    return json.dumps({"messages": [message]}).encode(), False


def _cut(random: random.Random) -> tuple[bytes, bool]:
    data, _ = _good(random)
    return data[: random.randrange(1, len(data))].rstrip(b" ") or b"{", False


def _flipped(random: random.Random) -> tuple[bytes, bool]:
    data, _ = _good(random)
    at = random.randrange(len(data))
    return data[:at] + random.choice((b"\x00", b"\xff", b"\x01")) + data[at:], False


def _constant(random: random.Random) -> tuple[bytes, bool]:
    number = random.choice((b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e400", b"9" * 5000))
    return b'{"prompt":"x","score":' + number + b"}", False


def _surrogate(random: random.Random) -> tuple[bytes, bool]:
    half = random.choice((b"\\ud800", b"\\udfff", b"a\\ud83d b"))
    return b'{"prompt":"' + half + b'"}', False


def _surrogate_elsewhere(random: random.Random) -> tuple[bytes, bool]:
    return b'{"prompt":"fine","id":"\\ud800%d","\\udfff":1}' % random.randrange(10**9), True


def _nul(random: random.Random) -> tuple[bytes, bool]:
    return random.choice(((b"\x00\x00", False), (b'{"prompt":"a\\u0000b"}', True)))


def _nested(random: random.Random) -> tuple[bytes, bool]:
    depth = random.choice((2000, 100_000))
    return b'{"prompt":' + b"[" * depth + b"]" * depth + b"}", False


def _too_long(random: random.Random) -> tuple[bytes, bool]:
    return b'{"prompt":"' + b"word " * random.choice((3000, 50_000)) + b'"}', False


def _noise(random: random.Random) -> tuple[bytes, bool]:
    data = random.randbytes(random.randrange(1, 60)).replace(b"\n", b"?").replace(b"\r", b"?")
    return b"!" + data, False


def ten_megabytes(random: random.Random) -> tuple[bytes, bool]:
    """A line that no context holds."""
    return b'{"prompt":"' + b"long " * (2 * 2**20) + b'"}', False


_KINDS: list[tuple[str, Callable[[random.Random], tuple[bytes, bool]]]] = [
    ("good", _good),
    ("good", _good),
    ("good request", _good_request),
    ("parameter", _bad_parameter),
    ("parameter", _bad_parameter),
    ("request", _bad_request),
    ("wrong type", _wrong_type),
    ("no object", _no_object),
    ("message", _bad_message),
    ("cut", _cut),
    ("flipped", _flipped),
    ("constant", _constant),
    ("surrogate", _surrogate),
    ("surrogate elsewhere", _surrogate_elsewhere),
    ("nul", _nul),
    ("nested", _nested),
    ("too long", _too_long),
    ("noise", _noise),
]
