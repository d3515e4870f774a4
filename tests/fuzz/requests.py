"""Requests to a server, as bytes: every path of its openapi document, each part good or bad."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz.bodies import GOOD, MODELS, body, rows
from tests.fuzz.mutate import TEXTS, VALUES, damaged, dumped

_CRLF = re.compile(r"[\r\n]")
_METHODS = "GET POST PUT DELETE HEAD OPTIONS PATCH TRACE FOO".split()
_JSON = "application/json"
_TYPES: list[str] = VALUES["types"]
_HEADERS: list[list[str]] = VALUES["headers"]
_HEADERS += [["Authorization", "Basic " + "A" * 5000], ["X-Long", "y" * 60_000]]
_HEADERS += [["X-Huge", "y" * 80_000]]


@dataclass
class Asked:
    """One request. ``framed``: its head and length are right, so that an answer must come."""

    number: int
    method: str
    template: str  # of the path, as the openapi document has it
    raw: bytes
    framed: bool = True
    good: bool = False
    upload: list[Any] = field(default_factory=list)


@dataclass
class Known:
    """What a server has said that later requests may name."""

    paths: Mapping[str, Mapping[str, Any]]  # of its openapi document
    files: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    busy: bool = False  # it has enough batches for now

    @property
    def all(self) -> list[tuple[str, str]]:
        """Each path with a method of it."""
        return [(path, name.upper()) for path, methods in self.paths.items() for name in methods]


def request(number: int, random: Random, known: Known) -> Asked:
    """One that is drawn by chance."""
    every = known.all
    weights = [6 if path in GOOD else 3 if path == "/v1/files" else 1 for path, _ in every]
    template, method = random.choices(every, weights)[0]
    if template == "/v1/batches" and method == "POST" and known.busy:
        method = "GET"
    if len(known.files) > 40 and random.random() < 0.2:
        template, method = "/v1/files/{file_id}", "DELETE"
    asked = Asked(number, method, template, b"")
    if random.random() < 0.03:
        asked.method = random.choice(_METHODS)
    target = _target(template, asked.method, random, known)
    headers = [("Host", random.choice(("localhost", "127.0.0.1:80", "[::1]")))]
    data = b""
    if template == "/v1/files" and method == "POST":
        data, kind = _upload(asked, random)
        headers.append(("Content-Type", kind))
    elif method == "POST" or random.random() < 0.05:
        data = _body(template, random, known)
        kind = _JSON if random.random() < 0.85 else random.choice(_TYPES)
        headers.append(("Content-Type", kind))
    if random.random() < 0.1:
        headers += [
            (name, value) for name, value in random.choices(_HEADERS, k=random.choice((1, 1, 2)))
        ]
    _frame(asked, target, headers, data, random)
    return asked


def _body(template: str, random: Random, known: Known) -> bytes:
    operation = known.paths.get(template, {}).get("post", {})
    content = operation.get("requestBody", {}).get("content", {})
    made = body(template, random, content.get(_JSON, {}).get("schema"))
    if (
        template == "/v1/batches"
        and isinstance(made, dict)
        and known.files
        and random.random() < 0.8
    ):
        made["input_file_id"] = random.choice(known.files)
    data = dumped(made, random)
    if random.random() < 0.002:
        data = _large(random)
    return damaged(data, random) if random.random() < 0.08 else data


def _large(random: Random) -> bytes:
    """Megabytes of something."""
    size = random.choice((2**20, 4 * 2**20, 16 * 2**20 - 50, 17 * 2**20))
    return random.choice(
        (
            b'{"messages":[' + b"[]," * (size // 3) + b"1]}",
            b'{"prompt":"' + b"a" * size + b'"}',
            b'{"prompt":"x","metadata":{' + b'"k":1,' * (size // 6) + b'"z":1}}',
            b'{"prompt":"x","stop":"' + b"s" * size + b'"}',
            b'{"prompt":' + b"[" * size,
        )
    )


def _target(template: str, method: str, random: Random, known: Known) -> str:
    """The path with its parameters, and a query."""
    ids = known.batches if "batch" in template else known.files

    def parameter(_: re.Match[str]) -> str:
        if "models" in template:
            return quote(random.choice(MODELS).encode("utf-8", "surrogatepass"), safe=":")
        if ids and random.random() < 0.8:
            return random.choice(ids)
        odd = random.choice(("x", "..", "%2e%2e%2f", "a%00b", "%ff%fe", "file-" + "0" * 24, "%zz"))
        return (
            odd
            if random.random() < 0.5
            else quote(TEXTS[random.randrange(20)].encode("utf-8", "surrogatepass")[:2000])
        )

    path = re.sub(r"\{[^}]*\}", parameter, template)
    if random.random() < 0.3 if method == "GET" else random.random() < 0.03:
        names = random.choices(
            ("limit", "after", "order", "purpose", "x", "%ff"), k=random.choice((1, 2))
        )
        values = (
            "0",
            "1",
            "100",
            "-1",
            "9" * 400,
            "1e3",
            "asc",
            "batch",
            "%00",
            "%ed%a0%80",
            "",
            "+",
        )
        path += "?" + "&".join(f"{name}={random.choice((*values, *ids[:3]))}" for name in names)
    return path


def _frame(
    asked: Asked, target: str, headers: Sequence[tuple[str, str]], data: bytes, random: Random
) -> None:
    """The bytes on the wire."""
    seen = {name.lower() for name, _ in headers[1:]}
    lines = [f"{asked.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    # What is wrong in the head may be refused by the HTTP parser, which has its own words.
    asked.framed = not seen & {"content-length", "transfer-encoding", "expect", "x\x00", "host"}
    asked.framed &= not seen & {"connection", "upgrade", "x-huge", "x-long"} and len(target) < 8000
    asked.framed &= not any(_CRLF.search(line) or "\xff" in line for line in lines)
    asked.framed &= asked.method not in ("HEAD", "TRACE", "FOO")
    if random.random() < 0.1 and "content-length" not in seen and "transfer-encoding" not in seen:
        at = random.randrange(len(data) + 1)
        pieces = [piece for piece in (data[:at], data[at:]) if piece]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        lines.append("Transfer-Encoding: chunked")
        data = chunks + b"0\r\n\r\n"
    elif "content-length" not in seen:
        length = len(data)
        if random.random() < 0.02:
            length += random.choice((5, -1)) if length else 5
            asked.framed = False
        lines.append(f"Content-Length: {length}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    asked.raw = head + data


def _upload(asked: Asked, random: Random) -> tuple[bytes, str]:
    """A multipart body of a file of rows, and its content type."""
    asked.upload = rows(random)
    lines = [dumped(row, random) for row in asked.upload]
    content = random.choice((b"\n", b"\r\n")).join(lines)
    if random.random() < 0.3:
        content = damaged(content, random)
    name = random.choice(("rows.jsonl", *TEXTS[:25]))[:300].replace("\r", "").replace("\n", "")
    parts = [
        (
            b'name="purpose"',
            random.choice((b"batch", b"batch", b"batch", b"fine-tune", b"", b"\xff")),
        ),
        (b'name="file"; filename="%b"' % name.encode("utf-8", "surrogatepass"), content),
    ]
    match random.randrange(12):
        case 0:
            parts.pop(random.randrange(2))
        case 1:
            parts *= random.choice((2, 300))
        case 2:
            parts.append((b'name="' + b"n" * 5000 + b'"', b"x"))
        case 3:
            random.shuffle(parts)
    mark = random.choice((b"x1", b"----WebKitFormBoundary7", b"a" * 70))
    body = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (mark, head, data)
        for head, data in parts
    )
    body += b"--%b--\r\n" % mark
    if random.random() < 0.15:
        body = damaged(body, random)
    said = mark if random.random() < 0.95 else b"other"
    return body, f"multipart/form-data; boundary={said.decode()}"


def wrong(asked: Asked, status: int, kind: str, data: bytes) -> str | None:
    """What is wrong with an answer, if anything is."""
    if status >= 500 and status != 503:
        return f"status {status}: {data[:200]!r}"
    if not asked.framed:
        return None
    if kind.startswith("text/event-stream"):
        return _wrong_stream(asked, data)
    if (
        asked.method == "OPTIONS"
        or status == 307
        or kind.startswith(("text/plain", "application/octet-stream"))
    ):
        return None
    try:
        said = json.loads(data)
    except ValueError:
        return f"status {status}, and no JSON: {data[:200]!r}"
    if status < 400:
        return None
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return f"status {status} without an error: {data[:200]!r}"
    if len(error["message"]) > 8192:
        return f"an error of {len(error['message']):,} characters"
    return None


def _wrong_stream(asked: Asked, data: bytes) -> str | None:
    ends = (b"data: [DONE]", b"message_stop", b"response.completed", b"response.incomplete")
    last = data.rstrip().rpartition(b"\n\n")[2]
    if any(end in last for end in ends) or b"error" in last or b"failed" in last:
        return None
    return f"a stream without an end: {data[-200:]!r}"
