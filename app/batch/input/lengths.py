"""How long an input's prompts are, counted with the model's tokenizer, without its weights."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.batch.input.source import Source
from app.openai.prepare import prepare
from app.openai.task import Task
from app.openai.validation import Problem
from app.prompts import PromptStyle, PromptTooLongError
from runtimes.chat import Message, encode_chat, encode_continuation
from runtimes.errors import RequestError
from runtimes.grammars import check_params
from runtimes.models.memory import DEFAULT_CONTEXT
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import tokenizer_of
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings

_PROBLEMS_KEPT = 5
_NOTE_SECONDS = 10.0


class FileEncoder:
    """Turns text into the tokens that an engine would; an ``runtimes.api.Encoder``.

    Raises ModelError when the file's tokenizer cannot be read.
    """

    def __init__(self, model: ModelFile, settings: RunnerSettings) -> None:
        self.model = model
        self.tokenizer = tokenizer_of(model)
        context = min(settings.context or DEFAULT_CONTEXT, model.context_length)
        self.context = min(context, settings.kv_tokens or context)

    def encode(self, text: str) -> list[int]:
        """Ids of raw text."""
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def encode_chat(
        self,
        messages: Sequence[Message],
        template: str | None = None,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation, by the model's chat template or by ``template``."""
        template = template or self.model.chat_template
        return encode_chat(self.tokenizer, template, messages, tools, variables)

    def encode_continuation(
        self,
        context: str | Sequence[Message],
        continuation: str,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], int]:
        """Ids of both together, and where the continuation begins."""
        template = self.model.chat_template
        return encode_continuation(self.tokenizer, template, context, continuation, variables)


@dataclass(slots=True)
class Lengths:
    """Tokens over the rows that can be asked."""

    rows: int = 0
    # Of a conversation's later turns only their own text: the answers between are not there yet.
    prompt_tokens: int = 0
    answer_tokens: int = 0  # of all answers if each were as long as it may be
    longest: int = 0  # tokens of the longest first prompt
    longest_where: str = ""
    unfit: int = 0  # rows that are valid, and cannot be asked of this model in this context
    problems: list[tuple[str, Problem]] = field(default_factory=list)

    @property
    def depth(self) -> int | None:
        """The mean tokens in a row's KV cache while it decodes: its prompt and half of its longest
        answer. None without rows."""
        return (self.prompt_tokens + self.answer_tokens // 2) // self.rows if self.rows else None


def measure(
    source: Source,
    encoder: FileEncoder,
    style: PromptStyle,
    sampling: SamplingParams,
    note: Callable[[str], None],
) -> Lengths:
    """Tokenize every valid row, with a ``note`` now and then."""
    found = Lengths()
    noted = time.monotonic()
    for row in source.rows():
        if row.problem is not None:
            continue
        try:
            sizes = [
                _sizes(part, encoder, style, part.sampling or sampling)
                for part in row.task.parts or [row.task]
            ]
        except RequestError as error:
            found.unfit += 1
            if len(found.problems) < _PROBLEMS_KEPT:
                long = isinstance(error, PromptTooLongError)
                code = "context_length_exceeded" if long else "invalid_request"
                found.problems.append((row.where, Problem(code, str(error))))
            continue
        found.rows += 1
        found.prompt_tokens += sum(prompt for prompt, _, _ in sizes)
        found.answer_tokens += sum(answers for _, answers, _ in sizes)
        longest = max(first for _, _, first in sizes)
        if longest > found.longest:
            found.longest, found.longest_where = longest, row.where
        if time.monotonic() - noted > _NOTE_SECONDS:
            noted = time.monotonic()
            note(f"{found.rows:,} rows counted, {found.prompt_tokens:,} tokens")
    return found


def _sizes(
    task: Task, encoder: FileEncoder, style: PromptStyle, params: SamplingParams
) -> tuple[int, int, int]:
    """Tokens of its first prompt and the texts of later turns, those of its answers at most, and
    those of its first prompt. Raises RequestError."""
    check_params(params, encoder.tokenizer.vocab_size)
    said = prepare(task, encoder, params, style)
    first, most = len(said.ids), said.params
    if len(task.turns) > 1 and (style.raw or task.raw):
        raise RequestError("a conversation needs the chat template; --raw takes a single prompt")
    later = sum(len(encoder.encode(text)) for text in task.turns[1:])
    answer = min(most.max_tokens, encoder.context - first)
    return first + later, answer * most.samples * task.asked, first
