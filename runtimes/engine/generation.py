"""A request inside the engine: its samples, and of each the text, sampling state and times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from runtimes.engine.detokenize import Detokenizer
from runtimes.engine.guide import GuideMaker
from runtimes.engine.row import Row
from runtimes.engine.runner import Tokenizer
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.sampling import SamplerState


class Sink(Protocol):
    """Where a request's answer goes. Called on the engine's thread, which it must not keep."""

    def put(self, chunk: Chunk) -> None:
        """Take a piece."""

    def finish(self, completion: Completion) -> None:
        """Take the end."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request from submission to completion. Its first sample forks the others."""

    request: Request
    sink: Sink
    submitted: float
    guide: GuideMaker | None = None  # of its constraint
    samples: list[Generation] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def deadline(self) -> float | None:
        """When it must end, on the clock of ``submitted``."""
        timeout = self.request.timeout_s
        return None if timeout is None else self.submitted + timeout

    @property
    def streams(self) -> bool:
        """Whether pieces can be handed on before it is known which samples are kept."""
        return self.request.params.samples == self.request.params.n

    def give_up(self, reason: FinishReason, error: str | None = None) -> None:
        """End it before it has a sample."""
        waited = time.monotonic() - self.submitted
        self.sink.finish(unstarted(self.request, reason, error, waited))

    def record(self, index: int, completion: Completion) -> None:
        """Take a sample's completion; the last one ends the request."""
        self.completions[index] = completion
        if len(self.completions) < len(self.samples):
            return
        ranked = [self.completions[generation.index] for generation in self.samples]
        if not self.streams:
            ranked = sorted(ranked, key=_rank, reverse=True)[: self.request.params.n]
        if not self.request.params.logprobs:
            ranked = [replace(one, logprobs=None) for one in ranked]
        if not self.streams:
            for number, one in enumerate(ranked):
                self.sink.put(Chunk(one.text, one.token_ids, number))
        self.sink.finish(replace(ranked[0], others=tuple(ranked[1:])))


def unstarted(
    request: Request, reason: FinishReason, error: str | None, waited: float = 0.0
) -> Completion:
    """The completion of a request that no step has seen."""
    size = len(request.prompt)
    timings = Timings(waited, 0.0, waited, 0.0, waited, size, 0)
    return Completion(request.id, "", (), reason, Usage(size, 0), timings, error=error)


def _rank(completion: Completion) -> tuple[bool, float]:
    """What samples are ordered by: failed ones come last, then the mean log-probability counts."""
    values = completion.logprobs or ()
    mean = sum(values) / len(values) if values else float("-inf")
    return completion.finish_reason is not FinishReason.ERROR, mean


@dataclass(slots=True, eq=False)
class Generation:
    """One sample of a request, owned by the engine's thread."""

    ticket: Ticket
    row: Row
    tokenizer: Tokenizer
    index: int = 0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)  # since the last piece: half characters
    sampler: SamplerState = field(init=False)
    text: Detokenizer = field(init=False)

    def __post_init__(self) -> None:
        params = self.request.params
        self.sampler = SamplerState(
            params,
            self.request.prompt,
            eos_ids=self.tokenizer.eos_ids,
            sample_index=self.index,
            guide=self.ticket.guide() if self.ticket.guide else None,
        )
        self.text = Detokenizer(params.stop)

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.ticket.request

    def accept(self, token: int, context: int | None) -> FinishReason | None:
        """Take a sampled token: stream its text; return why the sample ends, if it does.

        The end-of-sequence token itself is counted but gives no text. ``context`` None: it never
        fills up.
        """
        now = time.monotonic()
        self.first_token = self.first_token or now
        self.last_token = now
        self.sampler.accept(token)
        params, drawn = self.request.params, self.sampler.drawn
        guide = self.sampler.guide
        if token in self.tokenizer.eos_ids and (guide or not params.ignore_eos):
            return FinishReason.STOP
        piece = self.text.feed(
            self.tokenizer.token_bytes(token), may_stop=drawn >= params.min_tokens
        )
        self.silent.append(token)
        if piece:
            self._put(piece)
        if self.text.stopped or (guide is not None and guide.complete and not guide.error):
            return FinishReason.STOP
        if drawn >= params.max_tokens:
            return FinishReason.LENGTH
        # The token just sampled must still fit behind the prompt and the others.
        if context is not None and len(self.request.prompt) + drawn > context:
            return FinishReason.CONTEXT
        return None

    def complete(self, reason: FinishReason, error: str | None = None) -> Completion:
        """Flush the text and hand the completion to the ticket."""
        rest = self.text.finish()
        if rest:
            self._put(rest)
        tokens, params = tuple(self.row.output), self.request.params
        completion = Completion(
            id=self.request.id,
            text=self.text.text,
            token_ids=tokens,
            finish_reason=reason,
            usage=Usage(len(self.request.prompt), len(tokens), self._cached_tokens),
            timings=self._timings(len(tokens)),
            logprobs=tuple(self.logprobs) if params.wants_logprobs else None,
            error=error,
            top_logprobs=tuple(self.top_logprobs) if params.top_logprobs else None,
        )
        self.ticket.record(self.index, completion)
        return completion

    def _put(self, piece: str) -> None:
        tokens, self.silent = tuple(self.silent), []
        if self.ticket.streams:
            self.ticket.sink.put(Chunk(piece, tokens, self.index))

    @property
    def _cached_tokens(self) -> int:
        return min(self.row.reused, len(self.request.prompt))

    def _timings(self, completion_tokens: int) -> Timings:
        now = time.monotonic()
        submitted = self.ticket.submitted
        started = self.started or now
        first = self.first_token or now
        return Timings(
            queue_s=started - submitted,
            prefill_s=max(first - started, 0.0) if self.started else 0.0,
            ttft_s=first - submitted,
            decode_s=self.last_token - self.first_token,
            total_s=now - submitted,
            prompt_tokens=len(self.request.prompt),
            completion_tokens=completion_tokens,
            cached_tokens=self._cached_tokens,
        )
