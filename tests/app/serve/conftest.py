"""A server on a port of this machine, with Pebble, in a thread of the tests' own process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from openai import OpenAI

from app.adapters import name_and_path
from app.models.planning import choose
from app.models.prefixes import NONE_SAVED, SavedPrefixes
from app.options import ModelOptions, PlanOptions
from app.serve import connection, guard
from app.serve.batches.folder import claimed
from app.serve.batches.work import BatchService
from app.serve.generate import Generator
from app.serve.options import ServeOptions, ServeSampling
from app.serve.pool import ModelPool, ServedModel
from app.serve.server import http_server, listen
from tests.support import until


@pytest.fixture(autouse=True)
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in the tests' own process answers thousands of bad requests without a pause, and no
    test waits for the time that another's small pieces took."""
    monkeypatch.setattr(guard, "_REFUSALS", 10**6)
    monkeypatch.setattr(connection, "_turns", connection._Turns())


class Running:
    """Where it is, and what it has."""

    def __init__(self, port: int, generator: Generator, batches: BatchService) -> None:
        self.address, self.port = f"http://127.0.0.1:{port}", port
        self.generator, self.pool, self.batches = generator, generator.pool, batches

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key=key, max_retries=0)


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
def serving() -> Callable[..., Any]:
    """See ``running``."""
    return running


def started(ingot: Any, data: Path, *arguments: Any, **options: Any) -> tuple[Any, int]:
    """A server of its own process with its own folder of data, and its port."""
    process = ingot.start("serve", *arguments, "--port", 0, "--data", data, **options)
    for line in process.stderr:
        found = re.search(rb"127\.0\.0\.1:(\d+)/v1 is ready", line)
        if found:
            return process, int(found[1])
    raise AssertionError(process.wait())
