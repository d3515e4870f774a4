"""A server on a port of this machine, with Pebble, in a thread of the tests' own process."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from app.adapters import name_and_path
from app.models.planning import choose
from app.models.prefixes import NONE_SAVED, SavedPrefixes
from app.options import ModelOptions, PlanOptions
from app.serve import bodies, connection, guard
from app.serve.batches.folder import claimed
from app.serve.batches.work import BatchService
from app.serve.generate import Generator
from app.serve.options import ServeOptions, ServeSampling
from app.serve.pool import ModelPool, ServedModel
from app.serve.server import http_server, listen
from runtimes.worker.engine import WorkerEngine
from tests.app import endless
from tests.support import until


@pytest.fixture(autouse=True)
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in the tests' own process answers thousands of bad requests and large bodies without
    a pause, and no test waits for the time that another's small pieces took."""
    monkeypatch.setattr(guard, "_REFUSALS", 10**6)
    monkeypatch.setattr(bodies, "_REST", 0)
    monkeypatch.setattr(connection, "_turns", connection._Turns())


CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "frequency_penalty": -2,
    "max_tokens": endless.CONTEXT - 1024,
}
QUIET_S = 120.0


class Door:
    """A server as its clients see it."""

    def __init__(self, port: int) -> None:
        self.address, self.port = f"http://127.0.0.1:{port}", port

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0)

    def begin(
        self, body: Any = HELLO, path: str = CHAT, method: str = "POST", **headers: str
    ) -> http.client.HTTPConnection:
        """A request that is sent; an object becomes JSON."""
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=QUIET_S)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        asking.request(method, path, data, sent)
        return asking

    def ask(self, *request: Any, **headers: str) -> tuple[int, Any]:
        """Status and content of the answer."""
        asking = self.begin(*request, **headers)
        answer = asking.getresponse()
        data = answer.read()
        if answer.headers["content-type"] == "application/json" and data:
            data = json.loads(data)
        asking.close()
        return answer.status, data

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask(None, path, "GET", **headers)

    def refused(self, *request: Any, **headers: str) -> tuple[int, str]:
        """Status and code of an error."""
        status, said = self.ask(*request, **headers)
        return status, said["error"]["code"]

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection on which so much was said."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=QUIET_S)
        sock.sendall(data)
        return sock

    def figures(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by its labels' values."""
        families = text_string_to_metric_families(self.get("/metrics")[1].decode())
        samples = [sample for family in families for sample in family.samples]
        return {tuple(one.labels.values()): one.value for one in samples if one.name == name}

    def answered(self, status: int) -> float:
        """Requests with this status so far."""
        found = self.figures("ingot_requests_total").items()
        return sum(count for (_, one), count in found if one == str(status))


class Running(Door):
    """A server in the tests' own process, and what it has."""

    def __init__(self, port: int, generator: Generator, batches: BatchService) -> None:
        super().__init__(port)
        self.generator, self.pool, self.batches = generator, generator.pool, batches

    def engine(self, name: str = "pebble") -> WorkerEngine:
        return self.pool.loaded()[name].engine


@contextmanager
def running(
    models: dict[str, Path],
    saved: Path | None = None,
    context: int | None = None,
    adapters: dict[str, list[str]] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A server of these files, with the options given; beginnings of prompts are saved in the
    folder ``saved``, however soon they are read; ``adapters`` are of the models by name."""
    given = ServeOptions(port=0, **options)
    entries = [
        ServedModel(
            name,
            partial(
                choose,
                str(path),
                ModelOptions(context=context),
                PlanOptions(),
                "batch",
                given.slots,
                adapters=(adapters or {}).get(name),
            ),
            adapters=[name_and_path(one)[0] for one in (adapters or {}).get(name) or ()],
            fixed_slots=given.slots is not None,
        )
        for name, path in models.items()
    ]
    budget = None if given.memory is None else int(given.memory * 2**30)
    prefixes = NONE_SAVED
    if saved is not None:
        most = 1000 if given.saved_mb is None else given.saved_mb
        prefixes = SavedPrefixes(saved, most * 10**6, worth_s=0.0)
    pool, sampling = ModelPool(entries, budget, prefixes), ServeSampling().params()
    with ExitStack() as stack:
        listening = stack.enter_context(listen(given))
        stack.callback(pool.close)
        data = given.data or Path(stack.enter_context(TemporaryDirectory()))
        batches = BatchService(stack.enter_context(claimed(data)), pool, sampling)
        stack.callback(batches.close)
        batches.start()
        generator = Generator(pool, sampling, given.queue)
        server = http_server(generator, given, batches)
        thread = threading.Thread(target=partial(server.run, sockets=[listening]))
        thread.start()
        try:
            until(lambda: server.started)
            yield Running(listening.getsockname()[1], generator, batches)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def server(gguf_file: Path, onnx_folder: Path) -> Iterator[Running]:
    """One that most tests share: both runtimes, four slots."""
    with running({"pebble": gguf_file, "pebble-onnx": onnx_folder}, slots=4) as found:
        yield found


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


def started(ingot: Any, data: Path, *arguments: Any, **options: Any) -> tuple[Any, Door]:
    """A server of its own process with its own folder of data."""
    process = ingot.start("serve", *arguments, "--port", 0, "--data", data, **options)
    for line in process.stderr:
        found = re.search(rb"127\.0\.0\.1:(\d+)/v1 is ready", line)
        if found:
            return process, Door(int(found[1]))
    raise AssertionError(process.wait())
