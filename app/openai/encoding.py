"""From a task to the tokens that one engine is given for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.openai.asking import asked
from app.openai.task import Task
from app.openai.tool_parser import ToolParser
from app.prompts import (
    Encoder,
    PromptStyle,
    PromptTooLongError,
    conversation,
    encode,
    require_short,
)
from runtimes.chat import Message
from runtimes.errors import RequestError
from runtimes.models.registry import gives_embeddings
from runtimes.request import SamplingParams

_RAW = PromptStyle(raw=True)
# Nothing is generated; the likeliest token at each place tells what greedy decoding would take.
_SCORED = SamplingParams(max_tokens=0, prompt_logprobs=1)


class TaskEncoder(Encoder, Protocol):
    """The part of an engine that tasks need."""

    def encode_continuation(
        self, context: str | Sequence[Message], continuation: str
    ) -> tuple[list[int], int]:
        """Ids of both together, and where the continuation begins."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """What an engine is asked: the fields of a request, and what reads the answer."""

    ids: list[int]
    params: SamplingParams
    scored_from: int = 1
    embed: bool = False
    parser: Callable[[], ToolParser | None] = lambda: None


def encoded(
    task: Task,
    messages: Sequence[Message],
    encoder: TaskEncoder,
    style: PromptStyle,
    params: SamplingParams,
) -> Encoded:
    """``messages`` are those of the task, or of a later turn of it. Raises RequestError for what
    cannot be asked of this model in its context."""
    if task.raw:  # what was written for completions has its own form already
        style = _RAW
    if task.embed is not None:
        return _embedded(task, encoder)
    if task.ids:
        return Encoded(_fitting(list(task.ids), encoder, len(task.ids) + 1), params)
    if task.then is not None:
        params = _SCORED
    template = encoder.model.chat_template
    said = asked(task, conversation(style, messages), template, params)
    if task.then is not None:
        return _scored(task.then, said.messages, encoder, style)
    ids = encode(encoder, style, said.messages, said.tools)
    return Encoded(ids, said.params, parser=said.parser)


def _embedded(task: Task, encoder: TaskEncoder) -> Encoded:
    model = encoder.model
    if not gives_embeddings(model):
        raise RequestError(
            f"{model.path.name} gives no embeddings: choose the GGUF file of a model that is no"
            " reranker"
        )
    require_short(encoder, task.turns)
    ids = list(task.ids) or encoder.encode(task.turns[0])
    return Encoded(_fitting(ids, encoder, len(ids)), _SCORED, embed=True)


def _scored(
    then: str, messages: Sequence[Message], encoder: TaskEncoder, style: PromptStyle
) -> Encoded:
    require_short(encoder, [then, *messages])
    context: str | Sequence[Message] = messages
    if style.raw:
        if len(messages) != 1:
            raise RequestError(
                "a conversation needs the chat template; --raw takes a single prompt"
            )
        context = str(messages[0]["content"])
    ids, first = encoder.encode_continuation(context, then)
    return Encoded(_fitting(ids, encoder, len(ids) + 1), _SCORED, scored_from=first)


def _fitting(ids: list[int], encoder: TaskEncoder, room: int) -> list[int]:
    if room > encoder.context:
        raise PromptTooLongError(len(ids), encoder.context, encoder.model.context_length)
    return ids
