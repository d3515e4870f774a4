"""A server with a folder of data, and batches of requests to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.app.endless import CONTEXT
from tests.app.serve.conftest import Running, running
from tests.support import until

ENDED = ("completed", "failed", "cancelled")


def line(number: int, content: str = "", **body: Any) -> dict[str, Any]:
    """A request of its own number."""
    content = content or f"What is {number % 90 + 10} + {number // 90}?"
    asked = {"model": "pebble", "messages": [{"role": "user", "content": content}], **body}
    url = "/v1/chat/completions"
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": asked}


def begin(client: OpenAI, lines: list[Any], endpoint: str = "/v1/chat/completions") -> Any:
    """A batch of these lines: texts go in as they are."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    file = client.files.create(file=("in.jsonl", "\n".join(texts).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client: OpenAI, batch: Any) -> Any:
    """The batch when nothing more happens to it."""
    # Minutes where a device of software computes.
    return until(lambda: client.batches.retrieve(batch.id), lambda now: now.status in ENDED, 600)


def lines_of(client: OpenAI, file: str | None) -> list[dict[str, Any]]:
    """What a file of results has."""
    if file is None:
        return []
    return [json.loads(text) for text in client.files.content(file).text.splitlines()]


@pytest.fixture(scope="session")
def server(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that most tests share."""
    data = tmp_path_factory.mktemp("data")
    with running({"pebble": gguf_file}, slots=4, data=data) as found:
        yield found


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.client()


@pytest.fixture
def endless(endless_gguf: Path, tmp_path: Path) -> Callable[..., Any]:
    """Makes a server whose answers take minutes where they are let, with two slots."""

    def serve(*names: str, **options: Any) -> Any:
        models = dict.fromkeys(names or ("pebble",), endless_gguf)
        return running(models, context=CONTEXT, slots=2, data=tmp_path / "data", **options)

    return serve
