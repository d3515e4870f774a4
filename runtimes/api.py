"""Interface of every engine, in this process or in one of its own: the type that front ends use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from runtimes.chat import (
    Messages,
    ToolSchemas,
    Variables,
    encode_chat,
    encode_continuation,
    encode_text,
)
from runtimes.models.modelfile import ModelFile
from runtimes.request import Completion, Request, SamplingParams
from runtimes.stream import Stream

if TYPE_CHECKING:
    from runtimes.engine.metrics import EngineStats


T = TypeVar("T")


class Encoder(Protocol):
    """The part of an engine that turns text into tokens."""

    @property
    def model(self) -> ModelFile:
        """The loaded file."""

    @property
    def context(self) -> int:
        """Tokens that one request may hold, prompt and completion together."""

    def encode(self, text: str, suffix: str | None = None) -> list[int]:
        """Ids of a plain text, with the BOS token if the model wants one; with ``suffix``, of a
        prompt to fill in what is between both, or RequestError where the model cannot."""

    def encode_chat(
        self,
        messages: Messages,
        template: str | None = None,
        tools: ToolSchemas | None = None,
        variables: Variables | None = None,
    ) -> list[int]:
        """Ids of a conversation through the model's chat template, or through ``template``, which
        is given ``tools`` and ``variables``; raises RequestError where it refuses the conversation.
        """

    def encode_continuation(
        self,
        context: str | Messages,
        continuation: str,
        variables: Variables | None = None,
    ) -> tuple[list[int], int]:
        """Ids of both together, and where the continuation begins; raises RequestError."""


class TextEncoder(ABC):
    """An ``Encoder`` that leaves to ``encoded`` where the tokenizer is."""

    if TYPE_CHECKING:

        @property
        def model(self) -> ModelFile:
            """The loaded file."""

    @abstractmethod
    def encoded(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of ``runtimes.chat`` with the tokenizer and these arguments."""

    def encode(self, text: str, suffix: str | None = None) -> list[int]:
        """See ``Encoder.encode``."""
        return self.encoded(encode_text, text, suffix)

    def encode_chat(
        self,
        messages: Messages,
        template: str | None = None,
        tools: ToolSchemas | None = None,
        variables: Variables | None = None,
    ) -> list[int]:
        """See ``Encoder.encode_chat``."""
        self.model.require_writer()
        said = [dict(message) for message in messages]
        own = template or self.model.chat_template
        return self.encoded(encode_chat, own, said, tools, variables)

    def encode_continuation(
        self,
        context: str | Messages,
        continuation: str,
        variables: Variables | None = None,
    ) -> tuple[list[int], int]:
        """See ``Encoder.encode_continuation``."""
        self.model.require_writer()
        said = context if isinstance(context, str) else [dict(message) for message in context]
        own = self.model.chat_template
        return self.encoded(encode_continuation, own, said, continuation, variables)


class RequestEngine(Encoder, Protocol):
    """The part of an engine that runs requests. Every method may be called from any thread."""

    @property
    def slots(self) -> int:
        """Requests that run at the same time."""

    @property
    def pid(self) -> int | None:
        """Number of the process that holds the model, another one after each death; None while
        there is none. ``encode`` waits for the next process."""

    def submit(self, request: Request) -> Stream:
        """Queue a request; returns at once.

        Raises RequestError when the prompt leaves no room for a token, a token id is out of range,
        or the engine is closed.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request; what it has so far becomes its completion. Unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """A snapshot of the figures."""


class EngineApi(RequestEngine, Protocol):
    """Every method may be called from any thread. A context manager that closes on leaving."""

    @property
    def vocab_size(self) -> int:
        """Ids from 0 to below this may be submitted."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None
    ) -> list[Completion]:
        """Run a batch of token prompts to the end; completions in the order of the prompts."""
        params = params or SamplingParams()
        streams = [self.submit(Request(list(prompt), params)) for prompt in prompts]
        return [stream.result() for stream in streams]

    @property
    def adapters(self) -> frozenset[str]:
        """The names that ``Request.adapter`` may have."""

    def load_adapter(self, name: str, path: Path) -> None:
        """Load a LoRA adapter, a GGUF file, beside the model; requests go on meanwhile.

        Raises RequestError for a name that is taken or is none, where there are 8, or where the
        engine takes none, and ModelError for a file that does not fit the model.
        """

    def unload_adapter(self, name: str) -> None:
        """Free an adapter; RequestError while requests use it, or when there is none."""

    def trim(self) -> int:
        """Drop every cached prefix; return how many bytes of keys and values that freed."""

    def save_session(self, tokens: Sequence[int], path: Path, adapter: str | None = None) -> int:
        """Write the keys and values of the longest known prefix of ``tokens``, as ``adapter`` makes
        them, to ``path``.

        Returns its length. Raises RequestError when nothing of it is cached, or when it must be cut
        out of a longer text and no slot is free for that.
        """

    def load_session(self, path: Path, adapter: str | None = None) -> list[int]:
        """Put a saved prefix into the cache, for requests with ``adapter``; return its tokens.

        Raises ModelError when the file is damaged or of another model or adapter, RequestError when
        the cache's budget is too small for it.
        """

    def close(self, *, drain: bool = False) -> None:
        """End the engine: finish what was submitted (``drain``) or cancel it. Idempotent."""

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close without draining."""
        self.close()
