"""Readers of every dialect's bodies, as the server reads them: each is given what a body has beside
the least that it must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.batch.input.prompting import Prompting
from app.batch.spec import InputOptions
from app.openai.anthropic import messages_task
from app.openai.completions import completion_tasks
from app.openai.embeddings import embedding_task
from app.openai.request import body_task
from app.openai.responses import response_task
from app.openai.task import Task
from app.serve.embeddings import RerankBody
from runtimes.request import SamplingParams

SAID = [{"role": "user", "content": "How is it in Rome?"}]
DEFAULTS = SamplingParams()


def chat(**body: Any) -> Task:
    return body_task({"messages": SAID, **body}, "chat", DEFAULTS, served=True)


def completion(**body: Any) -> Task:
    return completion_tasks({"prompt": "hi", **body}, DEFAULTS)[0]


def response(**body: Any) -> Task:
    return response_task({"input": "hi", **body}, DEFAULTS)


def message(**body: Any) -> Task:
    return messages_task({"messages": SAID, "max_tokens": 5, **body}, DEFAULTS)


def row(said: dict[str, Any], kind: Any, **prompting: Any) -> Task:
    """A row of a batch's file."""
    return Prompting(InputOptions(task=kind), **prompting).task(said, None)


READERS: dict[str, Callable[..., Any]] = {
    "chat": chat,
    "completion": completion,
    "response": response,
    "message": message,
    "embedding": lambda **body: embedding_task(body),
    "score": lambda **said: row(said, "score"),
    "classify": lambda **said: row(said, "classify"),
    "embed": lambda **said: row(said, "embed"),
    "rerank": lambda **body: RerankBody.read({"query": "q", "documents": ["a"], **body}),
}
