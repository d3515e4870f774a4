"""One request inside the engine: its row, text, sampling state and times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from runtimes.detokenize import Detokenizer
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.runner import Tokenizer
from runtimes.sampling import SamplerState
from runtimes.scheduler import Row
from runtimes.stream import Stream


@dataclass(slots=True, eq=False)
class Generation:
    """State of a request from submission to completion, owned by the engine's thread."""

    request: Request
    stream: Stream
    submitted: float
    row: Row | None = None
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    sampler: SamplerState = field(init=False)
    text: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = SamplerState(self.request.params, self.request.prompt)
        self.text = Detokenizer(self.request.params.stop)

    def accept(self, token: int, tokenizer: Tokenizer, context: int) -> FinishReason | None:
        """Take a sampled token: stream its text; return why the request ends, if it does.

        The end-of-sequence token itself is counted but gives no text.
        """
        now = time.monotonic()
        self.first_token = self.first_token or now
        self.last_token = now
        self.sampler.accept(token)
        params = self.request.params
        if token in tokenizer.eos_ids and not params.ignore_eos:
            return FinishReason.STOP
        piece = self.text.feed(tokenizer.token_bytes(token))
        if piece:
            self.stream.put(Chunk(piece, (token,)))
        if self.text.stopped:
            return FinishReason.STOP
        if self.sampler.drawn >= params.max_tokens:
            return FinishReason.LENGTH
        # The token just sampled must still fit behind the prompt and the others.
        if len(self.request.prompt) + self.sampler.drawn > context:
            return FinishReason.CONTEXT
        return None

    def complete(self, reason: FinishReason, error: str | None = None) -> None:
        """Flush the text and hand the completion to the stream."""
        rest = self.text.finish()
        if rest:
            self.stream.put(Chunk(rest, ()))
        tokens = tuple(self.row.output) if self.row else ()
        self.stream.finish(
            Completion(
                id=self.request.id,
                text=self.text.text,
                token_ids=tokens,
                finish_reason=reason,
                usage=Usage(len(self.request.prompt), len(tokens)),
                timings=self._timings(len(tokens)),
                logprobs=tuple(self.logprobs) if self.request.params.logprobs else None,
                error=error,
            )
        )

    def _timings(self, completion_tokens: int) -> Timings:
        now = time.monotonic()
        started = self.started or now
        first = self.first_token or now
        return Timings(
            queue_s=started - self.submitted,
            prefill_s=max(first - started, 0.0) if self.started else 0.0,
            ttft_s=first - self.submitted,
            decode_s=self.last_token - self.first_token,
            total_s=now - self.submitted,
            prompt_tokens=len(self.request.prompt),
            completion_tokens=completion_tokens,
        )
