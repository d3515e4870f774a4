"""A server with a folder of data, or its batches alone, and batches of requests to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from app.serve.batches.folder import claimed
from app.serve.batches.store import Batch
from app.serve.batches.work import BatchService
from app.serve.options import ServeSampling
from app.serve.pool import ModelPool
from tests.app.endless import CONTEXT, SAMPLING
from tests.app.serve.conftest import CHAT, Running, running
from tests.support import until

ENDED = ("completed", "failed", "cancelled")
TALE = {**SAMPLING, "ignore_eos": True}


def line(number: int, content: str = "", url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A request of its own number."""
    content = content or f"What is {number % 90 + 10} + {number // 90}?"
    said = {"messages": [{"role": "user", "content": content}]} if url == CHAT else {}
    asked = {"model": "pebble", **said, **body}
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": asked}


def texts(lines: list[Any]) -> bytes:
    """These lines, of which texts are as they are."""
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines).encode()


def begin(client: OpenAI, lines: list[Any], endpoint: Any = CHAT, **more: Any) -> Any:
    """A batch of these lines."""
    file = client.files.create(file=("in.jsonl", texts(lines)), purpose="batch")
    more |= {"endpoint": endpoint, "completion_window": "24h"}
    return client.batches.create(input_file_id=file.id, **more)


def ended(client: OpenAI, batch: Any) -> Any:
    """The batch when nothing more happens to it."""
    # Minutes where a device of software computes.
    return until(lambda: client.batches.retrieve(batch.id), lambda now: now.status in ENDED, 600)


def lines_of(client: OpenAI, file: str | None) -> list[dict[str, Any]]:
    """What a file of results has."""
    if file is None:
        return []
    return [json.loads(text) for text in client.files.content(file).text.splitlines()]


# Without HTTP


@contextmanager
def serving(data: Path, models: ModelPool) -> Iterator[BatchService]:
    """A service from its start to its end."""
    with claimed(data) as folder:
        service = BatchService(folder, models, ServeSampling().params())
        try:
            yield service
        finally:
            service.close()


def new(service: BatchService, lines: list[Any]) -> Batch:
    """A batch of these lines."""
    file = service.files.begin()
    file.write(texts(lines))
    file.keep("in.jsonl", "batch")
    return service.create(file.id, CHAT, None)


def settled(service: BatchService, batch: Batch) -> Batch:
    return until(lambda: service.get(batch.id), lambda now: now.status in ENDED)


def alive(service: BatchService) -> bool:
    return all(thread.is_alive() for thread in service._threads)


@pytest.fixture(scope="session")
def server(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that most tests share."""
    data = tmp_path_factory.mktemp("data")
    with running({"pebble": gguf_file}, slots=4, data=data) as found:
        yield found


@pytest.fixture
def endless(endless_gguf: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes a server whose answers take minutes where they are let, with two slots."""

    def serve(*names: str, **options: Any) -> Any:
        models = dict.fromkeys(names or ("pebble",), endless_gguf)
        return running(models, context=CONTEXT, slots=2, data=tmp_path / "data", **options)

    return serve
