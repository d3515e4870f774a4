"""Hostile neighbours: a server's other clients are answered as quickly as without them.

`run` starts `ingot serve` on Pebble, and 58 clients that ask short questions with pauses between
them: first alone, then beside 6 clients that mean harm. Everything stays on this machine.
`python -m tests.fuzz.neighbours [SECONDS [SEED [KINDS]]]` shows what came of it as JSON; KINDS are
names of `_ACTS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from tests.fuzz.cases import ROOT, built
from tests.fuzz.server import Server

HONEST, HOSTILE = 58, 6
_NAME = "tests.fuzz.neighbours"
_KEY = "an honest key"
_THINK_S = 2.0  # between two questions of a client, in the mean
_WARM_S = 5.0
_PATIENCE_S = 60.0  # for an answer
_ACT_S = 4.0  # the longest that a hostile client does one thing
_PAUSE_S = 0.05  # between two things that it does
_QUESTIONS = ("What is the capital of France?", "What is 12 + 30?", "Tell me about the sea.")

logger = logging.getLogger(__name__)


def run(seconds: float, seed: int, kinds: str = "") -> dict[str, float]:
    """Answer times of the honest clients in seconds, without and with the hostile ones (each for
    so many ``seconds``), their errors, and the memory of server and worker in MB. The hostile ones
    do what ``kinds`` says, else all there is."""
    with tempfile.TemporaryDirectory(prefix="ingot-neighbours-") as folder:
        options = ("--slots", "8", "--api-key", _KEY, "--saved-mb", "0")
        server = Server(Path(folder), Path(folder, "data"), {"pebble": built()}, *options)
        try:
            if not server.ready():
                raise RuntimeError(f"the server ended: {server.log.read_text()}")
            process = psutil.Process(server.process.pid)
            found = asyncio.run(_measured(process, server.port, seconds, seed, kinds))
            wrong = [what for what, _ in server.said()]
            if ended := server.end():
                wrong.append(ended)
        finally:
            server.kill()
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return found


@dataclass(slots=True)
class _Phase:
    """Answers of one part of the time."""

    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def _measured(
    server: psutil.Process, port: int, seconds: float, seed: int, kinds: str
) -> dict[str, float]:
    phases = [_Phase(), _Phase(), _Phase()]
    now = 0
    over = asyncio.Event()
    memory: list[tuple[int, float, float]] = []

    async def honest(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        await asyncio.sleep(chance.uniform(0, _THINK_S))
        while not over.is_set():
            begun, phase = time.monotonic(), phases[now]
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await _ask(port, chance)
                phase.times.append(time.monotonic() - begun)
            except (OSError, ValueError, TimeoutError) as error:
                phase.errors.append(repr(error))
            await asyncio.sleep(chance.uniform(0, 2 * _THINK_S))

    async def look() -> None:
        while not over.is_set():
            workers = sum(one.memory_info().rss for one in server.children(recursive=True))
            memory.append((now, server.memory_info().rss / 1e6, workers / 1e6))
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(honest(number)) for number in range(HONEST)]
    tasks.append(asyncio.create_task(look()))
    try:
        await asyncio.sleep(_WARM_S)
        now = 1
        await asyncio.sleep(seconds)
        line = (sys.executable, "-m", _NAME, "hostile", str(port), str(seconds), str(seed), kinds)
        now = 2
        hostile = await asyncio.create_subprocess_exec(*line, cwd=ROOT)
        await asyncio.sleep(seconds)
        if await hostile.wait():
            raise RuntimeError("the hostile clients ended with an error")
    finally:
        over.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    for error in (one for one in done if isinstance(one, BaseException)):
        raise error
    for text in sorted({text for phase in phases for text in phase.errors}):
        logger.warning("an honest client: %s", text)
    return _figures(phases[1], phases[2], [one[1:] for one in memory if one[0] == 2])


def _figures(alone: _Phase, beside: _Phase, memory: list[tuple[float, float]]) -> dict[str, float]:
    third = max(1, len(memory) // 3)
    found = {"errors_alone": float(len(alone.errors)), "errors": float(len(beside.errors))}
    for name, phase in (("alone", alone), ("beside", beside)):
        cuts = quantiles(phase.times, n=20)
        found |= {f"answers_{name}": float(len(phase.times)), f"p50_{name}": median(phase.times)}
        found[f"p95_{name}"] = cuts[18]
    found["p95_ratio"] = found["p95_beside"] / found["p95_alone"]
    for at, name in enumerate(("server", "worker")):
        sizes = [one[at] for one in memory]
        found[f"{name}_mb_first"] = median(sizes[:third])
        found[f"{name}_mb_last"] = median(sizes[-third:])
        found[f"{name}_mb_most"] = max(sizes)
    return found


async def _ask(port: int, chance: random.Random) -> None:
    """A short question, answered whole or as it comes. Raises ValueError for another answer."""
    body = {
        "messages": [{"role": "user", "content": chance.choice(_QUESTIONS)}],
        "max_tokens": 16,
        "stream": chance.random() < 0.5,
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_request(body))
        answer = await reader.read(-1)
    finally:
        writer.close()
    good = b"[DONE]" if body["stream"] else b'"finish_reason"'
    if not answer.startswith(b"HTTP/1.1 200 ") or good not in answer:
        raise ValueError(f"answered {answer[:300]!r}")


def _request(body: Any, path: str = "/v1/chat/completions", key: str = _KEY) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _head(f"Content-Length: {len(data)}\r\nConnection: close", path, key) + data


def _head(more: str, path: str = "/v1/chat/completions", key: str = _KEY) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{more}"
    return f"{lines}\r\n\r\n".encode()


# Hostile clients, in a process of their own: what each says on a connection, and then again and
# again with pauses of so many seconds; without a text it reads the answer, or reads nothing (None).

_BOMBS = (
    b'{"metadata": [' + b"[]," * 5_000_000 + b"1]}",
    b"[" * 1_000_000,
    b'{"metadata": ' + b'{"a":' * 500 + b"1" + b"}" * 501,
    b'{"messages": [' + b"1," * 900_000 + b"1]}",
    b'{"messages": [' + b"{}," * 120_000 + b"1]}",
    b'{"prompt": "' + b"\\n" * 7_000_000 + b'"}',
)
_GIANTS: tuple[Any, ...] = (
    {"prompt": ["a"] * 256, "n": 64, "temperature": 1},
    {"prompt": "a", "n": 10**9},
    {"prompt": ["a"] * 100_000},
    {"prompt": ["a"] * 32, "n": 8, "temperature": 1, "max_tokens": 1},
    {"prompt": "a", "logit_bias": {str(number): 1 for number in range(50_000)}},
)
_FLOODS = (b"X: " + b"a" * 200_000 + b"\r\n", b"a: b\r\n" * 40_000, b"a: b\r\n" * 200)
_CHUNKED, _LARGE = "Transfer-Encoding: chunked", "Content-Length: 16000000"
_STORY = {"messages": [{"role": "user", "content": "A long story."}], "stream": True}
_CHUNK, _READS = b"1\r\n \r\n", (b"", 0.0)


def _cut(chance: random.Random) -> bytes:
    whole = _request(_STORY)
    return whole[: chance.randrange(len(whole) + 1)]


_ACTS: dict[str, tuple[Callable[[random.Random], bytes], tuple[bytes, float] | None]] = {
    "slow_body": (lambda by: _head(by.choice(("Content-Length: 100", _LARGE))), (b" ", 0.05)),
    "small_chunks": (lambda _: _head(_CHUNKED), (_CHUNK, 0.01)),
    "many_chunks": (lambda _: _head(_CHUNKED), (_CHUNK * 10_000, 0.01)),
    "wrong_key": (
        lambda by: _head(by.choice((_CHUNKED, _LARGE)), key="a wrong key"),
        (_CHUNK * 10_000, 0.01),
    ),
    "unread": (lambda _: _request({**_STORY, "max_tokens": 64}), None),
    "huge_head": (
        lambda by: b"POST / HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % by.choice(_FLOODS),
        _READS,
    ),
    "cut": (_cut, (b"", 1.0)),
    "bomb": (lambda by: _request(by.choice(_BOMBS)), _READS),
    "giant_n": (lambda by: _request(by.choice(_GIANTS), "/v1/completions"), _READS),
}


async def _act(kind: str, port: int, chance: random.Random) -> None:
    begin, more = _ACTS[kind]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(chance.uniform(0.1, _ACT_S)):
            writer.write(begin(chance))
            await writer.drain()
            if more is None:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(_ACT_S)
            elif more == _READS:
                await reader.read(-1)
            while more and more[0]:
                writer.write(more[0])
                await writer.drain()
                await asyncio.sleep(more[1])
    finally:
        writer.transport.abort()


async def _hostile(port: int, seconds: float, seed: int, kinds: str) -> None:
    end = time.monotonic() + seconds
    chosen = kinds.split(",") if kinds else [*_ACTS]

    async def client(number: int) -> None:
        chance = random.Random(f"hostile {seed} {number}")
        while time.monotonic() < end:
            with contextlib.suppress(OSError, TimeoutError):
                await _act(chosen[number % len(chosen)], port, chance)
            number += 1
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(client(number) for number in range(HOSTILE)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["hostile"]:
        asyncio.run(_hostile(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    else:
        given = [*sys.argv[1:], *("300", "1", "")[len(sys.argv) - 1 :]]
        found = run(float(given[0]), int(given[1]), given[2])
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
