"""A request inside the engine, and each of its samples: tokens, slot, text, sampling and times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from runtimes.engine.detokenize import Detokenizer
from runtimes.engine.metrics import Tokens
from runtimes.engine.prompt_scores import PromptScores
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.runner import Tokenizer
from runtimes.sampling import Sampled, SamplerState
from runtimes.sampling.grammar import MatcherMaker
from runtimes.sampling.thoughts import Said, Thoughts, ThoughtTokens


class Sink(Protocol):
    """Receiver of a request's answer. Called on the engine's thread, which it must not keep."""

    def put(self, chunk: Chunk) -> None:
        """Take a piece."""

    def finish(self, completion: Completion) -> None:
        """Take the end."""


@dataclass(slots=True, eq=False)
class RequestState:
    """A request from submission to completion. Its first sample forks the others."""

    request: Request
    sink: Sink
    submitted: float  # monotonic seconds
    tokenizer: Tokenizer
    grammar: str | None = None  # of its constraint
    new_matcher: MatcherMaker | None = None  # of its constraint, compiled
    thought_tokens: ThoughtTokens | None = None  # where its thinking is told from the answer
    scores: PromptScores | None = field(init=False)
    # Whether pieces can be handed on before it is known which samples are kept.
    streams: bool = field(init=False)
    sequences: list[Sequence] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)  # by the sample's index

    # Its place in the queue
    key: float = 0.0  # aged arrival
    order: int = 0  # breaks ties: first come, first served

    def __post_init__(self) -> None:
        self.scores = PromptScores.of(self.request)
        self.streams = self.request.params.samples == self.request.params.n

    @property
    def deadline(self) -> float | None:
        """When it must end, on the clock of ``submitted``."""
        timeout = self.request.timeout_s
        return None if timeout is None else self.submitted + timeout

    def give_up(self, reason: FinishReason, error: str | None = None) -> None:
        """End it before it has a sample."""
        waited = time.monotonic() - self.submitted
        self.sink.finish(unstarted(self.request, reason, error, waited))

    def record(self, index: int, completion: Completion) -> None:
        """Take a sample's completion; the last one ends the request."""
        self.completions[index] = completion
        if len(self.completions) < len(self.sequences):
            return
        ranked = [self.completions[sequence.index] for sequence in self.sequences]
        if not self.streams:
            ranked = sorted(ranked, key=_rank, reverse=True)[: self.request.params.n]
        if not self.request.params.logprobs and ranked[0].logprobs is not None:
            ranked = [replace(one, logprobs=None) for one in ranked]
        if not self.streams:
            for number, one in enumerate(ranked):
                if one.thought:
                    self.sink.put(Chunk(one.thought, (), number, thought=True))
                self.sink.put(Chunk(one.text, one.token_ids, number))
        first, *others = ranked
        self.sink.finish(replace(first, others=tuple(others)) if others else first)


def unstarted(
    request: Request, reason: FinishReason, error: str | None, waited: float = 0.0
) -> Completion:
    """The completion of a request that no step has seen."""
    size = len(request.prompt)
    timings = Timings(waited, 0.0, waited, 0.0, waited, size, 0)
    return Completion(request.id, "", (), reason, Usage(size, 0), timings, error=error)


def _rank(completion: Completion) -> tuple[bool, float]:
    """Return the sort key of samples: failed ones come last, then the mean log-probability
    counts."""
    values = completion.logprobs or ()
    mean = sum(values) / len(values) if values else float("-inf")
    return completion.finish_reason is not FinishReason.ERROR, mean


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request."""

    state: RequestState
    index: int = 0  # which of the request's samples
    prompt: list[int] = field(init=False)
    output: list[int] = field(default_factory=list)

    # Its slot
    slot: int = -1
    requeued: bool = False  # has lost one before
    computed: int = 0  # tokens whose keys and values have gone into the slot
    dropped: int = 0  # of these, taken out again by a context shift
    forced: int = 0  # tokens at the end that were not sampled and may go in with the one before
    needs_prefix: bool = True  # until the slot has been made ready for it
    reused: int = 0  # tokens of the prompt that did not have to be computed
    stops: list[int] = field(default_factory=list)  # where steps end for a checkpoint, ascending
    # Above 1, it is computed in one way only: the prompt is cut at multiples of it, and each token
    # of the answer goes in by itself, also when it has to be computed again.
    chunk: int = 1

    # Its answer
    sampler: SamplerState = field(init=False)
    thoughts: Thoughts | None = None
    text: Detokenizer = field(init=False)
    forced_tokens: int = 0
    guessed: Tokens = field(default_factory=Tokens)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)  # since the last piece: half characters
    started: float = 0.0  # monotonic seconds, as the others
    first_token: float = 0.0
    last_token: float = 0.0

    def __post_init__(self) -> None:
        self.prompt, params = self.request.prompt, self.request.params
        matcher = self.state.new_matcher() if self.state.new_matcher else None
        if self.state.thought_tokens is not None and self.request.thinking is not None:
            self.thoughts = Thoughts(
                self.state.thought_tokens,
                self.prompt,
                self.request.thinking,
                params.think_tokens,
                matcher,
            )
        self.sampler = SamplerState(
            params,
            self.prompt,
            eos_ids=self.state.tokenizer.eos_ids,
            sample_index=self.index,
            matcher=self.thoughts or matcher,
        )
        self.text = Detokenizer(params.stop)

    @property
    def request(self) -> Request:
        """The request."""
        return self.state.request

    def rank(self) -> tuple[float, int, int]:
        """Sort key of sequences; no two are equal."""
        return (self.state.key, self.state.order, self.index)

    @property
    def length(self) -> int:
        """Prompt and output together."""
        return len(self.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        """Tokens that must go through the model before the next one can be sampled."""
        return len(self.prompt) + len(self.output) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the next sample needs one token only, and those that were forced behind it."""
        pending = len(self.prompt) + len(self.output) - self.computed
        return pending <= 1 + self.forced and not self.needs_prefix

    @property
    def next_chunk(self) -> int:
        """How many tokens go in next, by ``chunk``."""
        left = len(self.prompt) - self.computed
        return min(left, self.chunk - self.computed % self.chunk) if left > 0 else 1

    @property
    def before_stop(self) -> int:
        """Tokens until the next checkpoint; all that are pending, if there is none."""
        ahead = (at - self.computed for at in self.stops if at > self.computed)
        return min(next(ahead, self.pending), self.pending)

    def turn_ends(self) -> tuple[int, int]:
        """Places that later prompts often go on from: the end of the first message, where more
        follow (else 0), by the control tokens of the prompt; and where the answer begins, or the
        thought before it that a template may drop. One token is left to compute for an answer that
        is asked for again.
        """
        silent = self.state.tokenizer.token_bytes
        control = {token for token in set(self.prompt) if not silent(token)}
        ends = [
            at
            for at in range(1, len(self.prompt))
            if self.prompt[at] in control and self.prompt[at - 1] not in control
        ]
        thought = self.state.thought_tokens
        answer = thought.begin(self.prompt) if thought else len(self.prompt)
        # Four are the end of one message, begin and end of another, and the answer's begin.
        return ends[1] if len(ends) >= 4 else 0, min(answer, len(self.prompt) - 1)

    @property
    def position(self) -> int:
        """Position of the next token in the slot."""
        return self.computed - self.dropped

    def tokens(self, start: int, count: int) -> list[int]:
        """``count`` tokens of prompt and output from ``start`` on."""
        if start >= len(self.prompt):
            start -= len(self.prompt)
            return self.output[start : start + count]
        return (self.prompt[start : start + count] + self.output)[:count]

    def cached_tokens(self) -> list[int]:
        """The tokens in the slot that another sequence can use: none after a shift, whole chunks of
        the prompt where there are any.
        """
        reusable = 0 if self.dropped or self.needs_prefix else self._reusable(self.computed)
        return self.tokens(0, reusable)

    def coming_tokens(self) -> list[int]:
        """Value of ``cached_tokens`` once all tokens are in."""
        return self.tokens(0, self._reusable(self.length))

    def _reusable(self, count: int) -> int:
        if self.chunk == 1:
            return count
        return min(count, len(self.prompt)) // self.chunk * self.chunk

    def distrust(self) -> None:
        """Let nobody use what its slot holds."""
        self.dropped = self.dropped or self.computed

    def accept(self, sampled: Sampled, token: int, context: int | None) -> FinishReason | None:
        """Take the sampled ``token``: stream its text; return why the sample ends, if it does.

        The end-of-sequence token itself is counted but gives no text. ``context`` None: it never
        fills up.
        """
        now = time.monotonic()
        self.first_token = self.first_token or now
        self.last_token = now
        if sampled.logprob is not None:
            self.logprobs.append(sampled.logprob)
        if sampled.top_logprobs is not None:
            self.top_logprobs.append(sampled.top_logprobs)
        self.sampler.accept(token)
        params, drawn = self.state.request.params, self.sampler.drawn
        matcher, tokenizer = self.sampler.matcher, self.state.tokenizer
        if token in tokenizer.eos_ids and (params.constraint or not params.ignore_eos):
            return FinishReason.STOP
        may_stop = drawn >= params.min_tokens
        self.silent.append(token)
        if self.thoughts is not None:
            self._say(self.thoughts.said, may_stop=may_stop)
        elif piece := self.text.feed(self._bytes_of(token), may_stop=may_stop):
            self._put(piece)
        if self.text.stopped or (matcher is not None and matcher.complete and not matcher.error):
            return FinishReason.STOP
        if drawn >= params.max_tokens:
            return FinishReason.LENGTH
        # The token just sampled must still fit behind the prompt and the others.
        if context is not None and len(self.prompt) + drawn > context:
            return FinishReason.CONTEXT
        return None

    def complete(self, reason: FinishReason, error: str | None = None) -> Completion:
        """Flush the text and hand the completion to the request."""
        if self.thoughts is not None:
            self._say(self.thoughts.finish())
        if rest := self.text.finish():
            self._put(rest)
        tokens, params, scores = tuple(self.output), self.request.params, self.state.scores
        thoughts = self.thoughts
        usage = Usage(
            len(self.prompt),
            len(tokens),
            min(self.reused, len(self.prompt)),
            min(thoughts.count, len(tokens)) if thoughts else 0,
        )
        unscored = (None,) * (scores.first if scores else 0)
        completion = Completion(
            id=self.request.id,
            text=self.text.text,
            token_ids=tokens,
            finish_reason=reason,
            usage=usage,
            timings=self._timings(usage),
            logprobs=tuple(self.logprobs) if params.wants_logprobs else None,
            error=error,
            top_logprobs=tuple(self.top_logprobs) if params.top_logprobs else None,
            prompt_logprobs=(*unscored, *scores.logprobs) if scores else None,
            prompt_top_logprobs=(*unscored, *scores.top_logprobs)
            if scores and scores.top
            else None,
            token_bytes=self._token_bytes()
            if params.logprobs or params.top_logprobs or scores
            else None,
            stop=self.text.stopped_by,
            thought=thoughts.text or None if thoughts else None,
            thinks=thoughts is not None and thoughts.open,
        )
        self.state.record(self.index, completion)
        return completion

    def _bytes_of(self, token: int) -> bytes:
        """Return the token's bytes in the text."""
        matcher = self.sampler.matcher
        if matcher is not None and token in matcher.markers:
            return matcher.markers[token]
        return self.state.tokenizer.token_bytes(token)

    def _token_bytes(self) -> dict[int, bytes]:
        scores = self.state.scores
        ids = set(self.output).union(*self.top_logprobs, scores.tokens() if scores else ())
        return {token: self._bytes_of(token) for token in ids}

    def _say(self, said: Said, *, may_stop: bool = True) -> None:
        if said.thought:
            self._put(said.thought, thought=True)
        if said.answer and (piece := self.text.add(said.answer, may_stop=may_stop)):
            self._put(piece)

    def _put(self, piece: str, *, thought: bool = False) -> None:
        if self.state.streams:
            self.state.sink.put(Chunk(piece, tuple(self.silent), self.index, thought))
        self.silent.clear()

    def _timings(self, usage: Usage) -> Timings:
        now, submitted = time.monotonic(), self.state.submitted
        started, first = self.started or now, self.first_token or now
        return Timings(
            queue_s=started - submitted,
            prefill_s=max(first - started, 0.0) if self.started else 0.0,
            ttft_s=first - submitted,
            decode_s=self.last_token - self.first_token,
            total_s=now - submitted,
            forced_tokens=self.forced_tokens,
            **self.guessed,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )


RowTokens = dict[Sequence, list[int]]  # tokens that go in behind rows
