"""Bodies as the server reads them, in this process: thousands a second."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

from app.openai.anthropic import messages_task
from app.openai.completions import completion_tasks
from app.openai.embeddings import embedding_task
from app.openai.prepare import form_prompt
from app.openai.request import body_task
from app.openai.responses import response_task
from app.openai.task import Task
from app.openai.validation import InputError
from app.serve.batches.routes import BatchBody
from app.serve.embeddings import RerankBody
from app.serve.errors import HttpError
from runtimes.errors import IngotError
from runtimes.request import SamplingParams
from tests.app.openai.test_tools import HERMES, MISTRAL, PLAIN
from tests.fuzz.bodies import GOOD, body
from tests.fuzz.cases import Case, loop
from tests.fuzz.mutate import damaged, dumped

_DEFAULTS = SamplingParams()
_READERS: dict[str, Callable[[Any], Any]] = {
    "/v1/chat/completions": lambda said: body_task(said, "chat", _DEFAULTS, served=True),
    "/v1/completions": lambda said: completion_tasks(said, _DEFAULTS),
    "/v1/messages": lambda said: messages_task(said, _DEFAULTS),
    "/v1/messages/count_tokens": lambda said: messages_task(said, _DEFAULTS, counted=True),
    "/v1/responses": lambda said: response_task(said, _DEFAULTS),
    "/v1/embeddings": embedding_task,
    "/v1/rerank": RerankBody.read,
    "/v1/batches": BatchBody.read,
}
_LAX = {"parse_constant": lambda _: math.nan}  # the server refuses those; a row's reader may not


def one(case: Case) -> None:
    random = case.random
    path = random.choice(sorted(_READERS))
    data = dumped(body(path, random), random)
    if random.random() < 0.05:
        data = damaged(data, random)
    case.write(f"{path.strip('/').replace('/', '-')}.json", data)
    with contextlib.suppress(ValueError, RecursionError):  # as `json_body` refuses it
        said = json.loads(data, **(_LAX if random.random() < 0.1 else {}))
        case.figures["read"] += 1
        with contextlib.suppress(InputError, HttpError, IngotError):
            found = _READERS[path](said)
            case.figures["tasks"] += 1
            for task in found if isinstance(found, list) else [found]:
                if isinstance(task, Task) and not task.parts:
                    _ask(task, random.choice((PLAIN, HERMES, MISTRAL)))


def _ask(task: Task, template: str) -> None:
    """What a worker is sent."""
    said = form_prompt(task, task.opening, template, task.sampling or _DEFAULTS)
    pickle.dumps((said.messages, said.tools, said.params))


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    assert {*_READERS} <= {*GOOD}
    return loop("reading", one, seconds, seed, count)
