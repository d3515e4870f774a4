"""A real `ingot serve` on Pebble under several clients, whatever they send.

Each second a good request must be answered as before, and every list be there; at the end the
server must end at SIGTERM and begin again on the same data.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.adapters import write_adapter
from tests.app.openai.test_tools import HERMES
from tests.fuzz.cases import ROOT, Findings, built, numbers
from tests.fuzz.requests import Asked, Known, request, wrong
from tests.support import furnish

CLIENTS = 6
ANSWER_S = 120.0  # as long as any answer may take; the machine may be busy
SIMPLE_S = 30.0  # and what a second's look asks for
MOST_MEMORY = 6 * 2**30  # of the server's processes together
LISTS = ("/health", "/ready", "/metrics", "/v1/models", "/v1/batches", "/v1/files", "/v1/stats")
_GOOD = {
    "model": "pebble",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 12,
    "priority": "critical",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TRACEBACK = re.compile(r"(?<!occurred:\n\n)(?<!exception:\n\n)^ *Traceback \(most", re.MULTILINE)
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)')


def make_models(base: Path) -> tuple[dict[str, Path], Path]:
    """Two models by name, one with a template that tells tools, and a folder of adapters."""
    folder, adapters = built(), base / "adapters"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    paths = {one["recipe"]: folder / one["path"] for one in files}
    shutil.copytree(paths["onnx-int8"], base / "tools")
    (base / "tools" / "chat_template.jinja").write_text(HERMES)
    adapters.mkdir()
    write_adapter(ROOT / "assets" / "pebble", adapters / "poet.gguf", 1)
    (adapters / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    return {"pebble": paths["q8_0"], "tools": base / "tools"}, adapters


class Server:
    """The process, and its log."""

    def __init__(self, base: Path, data: Path, models: dict[str, Path], *options: str) -> None:
        furnish(base / "home")
        self.log = base / f"server-{time.monotonic_ns()}.log"
        arguments = [f"{name}={path}" for name, path in models.items()]
        arguments += ["--port", "0", "--data", str(data), *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "INGOT_HOME": str(base / "home")},
            )
        self.port = 0
        self._read = 0

    def ready(self) -> bool:
        """Wait for it; False where it ends instead."""
        end = time.monotonic() + 180
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(rb"127\.0\.0\.1:(\d+)/v1 is ready", self.log.read_bytes())
            if found:
                self.port = int(found[1])
                return True
            time.sleep(0.05)
        return False

    def said(self) -> list[tuple[str, str]]:
        """What is wrong with what the log says since the last look, each with that part of it."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        text = data.decode("utf-8", "backslashreplace")
        found = []
        # Of exceptions that came while another was handled, the last is the one that nobody did.
        for piece in _TRACEBACK.split(text)[1:]:
            frames = _FRAME.findall(piece)
            own = [one for one in frames if one[0].startswith(str(ROOT)) and ".venv" not in one[0]]
            where = ":".join((own or frames or [("?",)])[-1]).removeprefix(f"{ROOT}/")
            last = next((line for line in piece.split("\n")[1:] if line[:1].strip()), "")
            found.append((f"traceback in the log at {where}: {last[:200]}", piece))
        for line in text.split("\n"):
            if _CONTROL.search(line):
                found.append((f"the log sends {line[:200]!r}", line))
            if "died" in line:
                found.append((f"the log says: {line[:300]}", line))
        return found

    def memory(self) -> int:
        """Bytes of all its processes."""
        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.process.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += one.memory_info().rss
        return total

    def end(self) -> str | None:
        """SIGTERM; what is wrong with how it ends."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "does not end within 120 s of SIGTERM"
        return None if code == 0 else f"ended with {code} at SIGTERM"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Run:
    """The clients, what they have seen, and the look each second."""

    def __init__(self, base: Path, seconds: float, seed: int, count: int | None) -> None:
        self.base, self.seed = base, seed
        self.figures, self.findings = Counter[str](), Findings("server", seed)
        self.paths: set[tuple[str, str]] = set()
        self.models, adapters = make_models(base)
        self.options = ("--adapter-dir", str(adapters), "--saved-mb", "50")
        self.options += ("--slots", "4", "--context", "512")
        self.data = base / "data"
        self.lock = threading.Lock()
        self.numbers = numbers(seconds, count)
        self.flying: dict[int, Asked] = {}
        self.broken: list[Asked] = []  # those whose connection ended, until the next look
        self.over, self.back = threading.Event(), threading.Event()
        self.known_kinds: set[str] = set()
        self.slowest = 0.0
        self.server = self.start()
        self.known = Known(self.get("/openapi.json")["paths"])
        self.baseline = self.canary()

    def start(self) -> Server:
        server = Server(self.base, self.data, self.models, *self.options)
        if not server.ready():
            self.found("does not begin", server.log.read_bytes()[-3000:].decode("utf-8", "replace"))
            server.kill()
            self.data = self.base / f"data-{time.monotonic_ns()}"
            self.figures["new_data"] += 1
            server = Server(self.base, self.data, self.models, *self.options)
            assert server.ready(), server.log.read_text()[-3000:]
        self.server = server
        self.back.set()
        return server

    def found(self, what: str, said: str = "", asked: Asked | None = None, kind: str = "") -> None:
        """Note a violation, once for each kind."""
        with self.lock:
            kind = kind or re.sub(r"\d+", "9", what)[:120]
            self.figures["repeats" if kind in self.known_kinds else "kinds"] += 1
            if kind in self.known_kinds:
                return
            self.known_kinds.add(kind)
            flying = [asked] if asked else [*self.broken, *self.flying.values()][-12:]
            files = {f"{one.number}.http": one.raw for one in flying if one}
            first = flying[0].number if flying else 0
            where = ", ".join(f"{one.method} {one.template} ({one.number})" for one in flying)
            self.findings.add(f"{what} [{where}]"[:600], first, said, files)
            sys.stderr.write(f"fuzz: server: {what[:300]} [{where[:200]}]\n")

    # Clients

    def client(self) -> None:
        while not self.over.is_set():
            self.back.wait(60)
            with self.lock:
                number = next(self.numbers, None)
                if number is None or self.findings.enough:
                    return
                random = Random(f"server:{self.seed}:{number}")
                asked = request(number, random, self.known)
                self.flying[threading.get_ident()] = asked
            begun = time.monotonic()
            try:
                answer = send(self.server.port, asked.raw, whole=asked.framed)
                self.take(asked, answer)
            except TimeoutError:
                self.found(f"no answer within {ANSWER_S:.0f} s", asked=asked)
            except (OSError, http.client.HTTPException) as error:
                with self.lock:
                    self.broken.append(asked)
                time.sleep(0.2)  # a server that has ended is told of by the look each second
                if asked.framed and self.server.process.poll() is None:
                    self.found(f"the connection ended without an answer: {error!r}", asked=asked)
            finally:
                took = time.monotonic() - begun
                with self.lock:
                    self.flying.pop(threading.get_ident(), None)
                    self.figures["requests"] += 1
                    if took > self.slowest:
                        self.slowest = took
                        self.figures["slowest_number"] = number

    def take(self, asked: Asked, answer: tuple[int, str, bytes]) -> None:
        status, kind, data = answer
        with self.lock:
            self.paths.add((asked.method, asked.template))
            name = str(status) if status in (429, 499) or status >= 500 else f"{status // 100}xx"
            self.figures[f"status_{name}"] += 1
            self.figures["streams"] += kind.startswith("text/event-stream")
        problem = wrong(asked, status, kind, data)
        if problem is None and str(self.base).encode() in data:
            problem = f"tells the server's own path: {data[:300]!r}"
        if problem is not None:
            self.found(
                problem, asked=asked, kind=f"{asked.template} {re.sub('[0-9]+', '9', problem)[:60]}"
            )
        if status == 200 and asked.method in ("POST", "DELETE"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.learn(asked, json.loads(data))

    def learn(self, asked: Asked, said: dict[str, Any]) -> None:
        with self.lock:
            if asked.template == "/v1/files":
                self.known.files.append(said["id"])
            elif asked.template == "/v1/batches":
                self.known.batches.append(said["id"])
                self.figures["batches"] += 1
            elif said.get("deleted") and said["id"] in self.known.files:
                self.known.files.remove(said["id"])

    # The look each second

    def watch(self) -> None:
        while not self.over.wait(1.0):
            self.look()

    def look(self) -> None:
        self._look()
        with self.lock:
            self.broken.clear()

    def _look(self) -> None:
        code = self.server.process.poll()
        problems = self.server.said()
        if code is not None:
            self.figures["server_deaths"] += 1
            tail = self.server.log.read_bytes()[-3000:].decode("utf-8", "replace")
            self.found(f"the server ended with {code}", tail, kind=f"end {code} {time.monotonic()}")
            self.back.clear()
            self.start()
            return
        for problem, log in problems:
            self.figures["worker_deaths"] += "died" in problem
            self.found(problem, log)
        memory = self.server.memory()
        self.figures["peak_mb"] = max(self.figures["peak_mb"], memory // 2**20)
        if memory > MOST_MEMORY:
            self.found(f"the server's processes hold {memory / 2**30:.0f} GiB", kind="memory")
        try:
            self.lists()
            if (said := self.canary()) != self.baseline:
                self.found(f"a good request is answered with {said!r}, not {self.baseline!r}")
            self.figures["looks"] += 1
        except (OSError, http.client.HTTPException, AssertionError) as error:
            if self.server.process.poll() is None:
                self.found(f"a look: {type(error).__name__}: {error}"[:300])

    def lists(self) -> None:
        for path in LISTS:
            begun = time.monotonic()
            said = self.get(path)
            took = round(1000 * (time.monotonic() - begun))
            self.figures["slowest_list_ms"] = max(self.figures["slowest_list_ms"], took)
            if path == "/v1/batches":
                running = [
                    one
                    for one in said["data"]
                    if one["status"] not in ("completed", "failed", "cancelled")
                ]
                self.known.busy = len(running) > 10

    def get(self, path: str) -> Any:
        raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        status, kind, data = send(self.server.port, raw, SIMPLE_S)
        assert status == 200, f"{path} is {status}: {data[:300]!r}"
        return json.loads(data) if kind.startswith("application/json") else data

    def canary(self) -> str:
        data = json.dumps(_GOOD).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}"
        )
        end = time.monotonic() + 4 * SIMPLE_S
        while True:
            status, _, said = send(self.server.port, head.encode() + b"\r\n\r\n" + data)
            if status == 200:
                return str(json.loads(said)["choices"][0]["message"]["content"])
            assert status in (429, 503), f"a good request is {status}: {said[:300]!r}"
            assert time.monotonic() < end, f"a good request is {status} for two minutes"
            time.sleep(0.2)
            self.figures["canary_again"] += 1

    def finish(self) -> None:
        """The end, and another begin on the same data."""
        self.look()
        for _ in range(2):
            if problem := self.server.end():
                tail = self.server.log.read_bytes()[-3000:].decode("utf-8", "replace")
                self.found(f"the server {problem}", tail)
            for problem, log in self.server.said():
                self.found(problem, log)
            if self.figures["restarts"]:
                break
            self.start()
            self.look()
            for name in self.known.batches[-200:]:
                with contextlib.suppress(AssertionError):  # of another folder of data
                    self.get(f"/v1/batches/{name}")
            self.figures["restarts"] += 1


def send(
    port: int, raw: bytes, seconds: float = ANSWER_S, *, whole: bool = True
) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer to ``raw``; not ``whole``: nothing more comes,
    which the server is told."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as sock:
        try:
            sock.sendall(raw)
            if not whole:
                sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may refuse what is too much before all of it has come
        answer = http.client.HTTPResponse(sock, method=raw[:4].decode("latin-1").strip())
        answer.begin()
        kind = answer.headers.get("content-type", "")
        return answer.status, kind, answer.read()


@contextlib.contextmanager
def _running(run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        run.over.set()
        run.back.set()
        if run.server.process.poll() is None:
            run.server.kill()


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    """See the module. Raises FoundError."""
    with tempfile.TemporaryDirectory(prefix="ingot-fuzz-server-") as base:
        made = Run(Path(base), seconds, seed, count)
        with _running(made):
            clients = [threading.Thread(target=made.client) for _ in range(CLIENTS)]
            watch = threading.Thread(target=made.watch)
            for thread in (*clients, watch):
                thread.start()
            for thread in clients:
                thread.join()
            made.over.set()
            watch.join()
            made.finish()
        made.figures["paths"] = len(made.paths)
        made.figures["slowest_ms"] = round(1000 * made.slowest)
        return made.findings.end(made.figures)
