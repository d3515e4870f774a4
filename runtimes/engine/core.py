"""The engine's step: schedule, run, sample, commit, deliver.

Everything here belongs to one thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from runtimes.engine.draft import Draft
from runtimes.engine.kv_cache import KvCache
from runtimes.engine.metrics import Metrics, Tokens
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.engine.sequence import RequestState, Sequence, unstarted
from runtimes.errors import IngotError
from runtimes.request import FinishReason
from runtimes.runner import Runner, StepLogits, require_full_logits
from runtimes.sampling import Sampled, sample
from runtimes.settings import PROMPT_CHUNK, RunnerSettings, SchedulerSettings

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Answer:
    """Tokens that a step adds to a sequence, and the reason if the sequence ends with them."""

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    end: FinishReason | None = None
    error: str | None = None


class EngineCore:
    """The state of all requests over one runner."""

    def __init__(
        self,
        runner: Runner,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        prefix_bytes: int,
        draft: Draft | None = None,
    ) -> None:
        capabilities = runner.capabilities
        self.metrics = Metrics()
        self.kv = KvCache(
            runner.kv,
            capabilities,
            pool_bytes=prefix_bytes,
            enabled=scheduling.prefix_cache,
            chunk=PROMPT_CHUNK if settings.reproducible else 1,
        )
        self.scheduler = Scheduler(self.kv, scheduling, draft)
        self.graphs_reused = runner.graphs_reused  # see ``Runner``; the value of the last step
        self._runner, self._draft = runner, draft
        self._shifts = settings.context_shift and capabilities.can_shift
        if settings.context_shift and not capabilities.can_shift:
            logger.warning("this file's context cannot be shifted: answers end where it is full")
        self._requests: dict[str, RequestState] = {}

    @property
    def requests(self) -> Collection[RequestState]:
        """Requests that have not ended."""
        return self._requests.values()

    @property
    def draft(self) -> str | None:
        """The draft that guesses."""
        return self._draft.name if self._draft and not self._draft.lost else None

    def warm_up(self) -> None:
        """Before the first step, on the engine's thread."""
        if self._draft is not None:
            self._draft.measure()

    def close(self) -> None:
        """Free native memory."""
        if self._draft is not None:
            self._draft.close()
        self._runner.close()

    def add(self, state: RequestState) -> None:
        """Take a request in."""
        sequence = Sequence(state)  # may fail: comes first
        state.sequences.append(sequence)
        if state.request.id in self._requests:
            self._deliver(sequence, FinishReason.ERROR, "a request with this id is already running")
            return
        self._requests[state.request.id] = state
        self.scheduler.add(sequence)

    def embed(self, state: RequestState) -> None:
        """Embed the prompt of a request, which ends it. Raises as ``Runner.embed``."""
        waited = time.monotonic() - state.submitted
        if state.request.timeout_s is not None and waited > state.request.timeout_s:
            state.give_up(FinishReason.DEADLINE)
            return
        begin = time.perf_counter()
        vector = self._runner.embed(state.request.prompt).tolist()
        took = time.perf_counter() - begin
        size = len(state.request.prompt)
        self.metrics.step(Tokens(prompt_tokens=size), native=took, whole=took)
        done = unstarted(state.request, FinishReason.STOP, None, waited)
        whole = waited + took
        times = replace(done.timings, prefill_s=took, ttft_s=whole, total_s=whole)
        state.sink.finish(replace(done, embedding=tuple(vector), timings=times))

    def cancel(self, request_id: str) -> None:
        """End what is left of a request; unknown ids are ignored."""
        state = self._requests.get(request_id)
        if state is not None:
            self._end_request(state, FinishReason.CANCELLED)

    def end_all(self, reason: FinishReason, error: str | None) -> None:
        """End every request."""
        for state in list(self._requests.values()):
            self._end_request(state, reason, error)

    def step(self) -> bool:
        """Run one step; False when no sequence can run now."""
        begin = time.perf_counter()
        step = self.scheduler.schedule(time.monotonic())
        for sequence in step.expired:
            self._deliver(sequence, FinishReason.DEADLINE)
        if not step.sequences:
            return False
        try:
            native_begin = time.perf_counter()
            logits = self._runner.execute(step.rows)
            native = time.perf_counter() - native_begin
            at = _score_prompts(step, logits)
            sampled = _sample(logits, at, step.sampled)
        except Exception as error:
            self._fail(step, error)
            return True
        if step.decoded and not (step.prefill or step.proposed):
            self.kv.learn(len(step.sequences), native)
        self.graphs_reused = self._runner.graphs_reused
        drawn = list(zip(step.sampled, sampled, strict=True))
        # A step with a row's first token counts as prefill.
        forked = self._fork(drawn, logits, at) if step.prefill else []
        answers = {one: self._accept(one, result) for one, result in drawn + forked}
        if step.proposed:
            self._verify(step, logits, at, answers)
        for one, answer in answers.items():
            if one.sampler.matcher is not None:
                self._force(answer)
        for one, _ in forked:
            one.output = answers[one].tokens
        tokens, later, completed = list[list[int]](), 0, 0
        for one in step.sampled:
            tokens.append(new := answers[one].tokens)
            later += len(new) - (not one.output) if new else 0
            completed += max(len(new), 1)
        counts = self.scheduler.commit(step, tokens, time.perf_counter() - begin)
        for one, answer in answers.items() if self._shifts else ():
            if answer.end is None and one.slot >= 0 and not self.kv.make_room(one):
                answer.end = FinishReason.CONTEXT
        for one in step.sequences if step.prefill else ():
            if one not in answers and (why := _unscored(one)):
                answers[one] = _Answer(one, end=FinishReason.ERROR, error=why)
        counts["prompt_tokens"], counts["decode_tokens"] = step.prefill, later
        counts["completion_tokens"] = completed
        counts["forced_tokens"] = sum(one.forced for one in answers)
        native += step.drafting_s
        self.metrics.step(counts, native=native, whole=time.perf_counter() - begin)
        # Last, so that whoever sees a completion sees its tokens in the figures too.
        for one, answer in answers.items():
            if answer.end is None:
                continue
            if answer.end is FinishReason.ERROR:
                one.distrust()  # what its slot holds is no better
            self._end(one, answer.end, answer.error)
        return True

    def _fork(
        self,
        drawn: list[tuple[Sequence, Sampled]],
        logits: StepLogits,
        at: list[int],
    ) -> list[tuple[Sequence, Sampled]]:
        """Draw the first tokens of further samples from the logits that their first one used."""
        forked: list[tuple[Sequence, Sampled]] = []
        for row, (first, result) in zip(at, drawn, strict=True):
            if first.output or first.index or result.token is None:
                continue
            state, count = first.state, first.request.params.samples
            if count == 1:
                continue
            others = [Sequence(state, index) for index in range(1, count)]
            state.sequences += others
            results = sample(logits[[row] * len(others)], [one.sampler for one in others])
            for other in others:
                other.started, other.reused = first.started, len(first.prompt)
                self.scheduler.add(other)
            forked += zip(others, results, strict=True)
        return forked

    def _accept(self, sequence: Sequence, sampled: Sampled) -> _Answer:
        """Hand out the first token that was sampled for a sequence."""
        answer = _Answer(sequence)
        if (error := _unscored(sequence)) is not None:
            answer.end, answer.error = FinishReason.ERROR, error
        elif sequence.state.request.params.max_tokens == 0 and sampled.token is not None:
            answer.end = FinishReason.LENGTH
        else:
            self._take(answer, sampled)
        return answer

    def _take(self, answer: _Answer, sampled: Sampled) -> None:
        if sampled.token is None:
            answer.end, answer.error = FinishReason.ERROR, sampled.error
            return
        answer.tokens.append(sampled.token)
        context = None if self._shifts else self.kv.capabilities.context
        answer.end = answer.sequence.accept(sampled, sampled.token, context)

    def _verify(
        self,
        step: Step,
        logits: StepLogits,
        at: list[int],
        answers: dict[Sequence, _Answer],
    ) -> None:
        """Go on sampling rows whose tokens are those that were proposed."""
        left = [
            (one, row) for one, row in zip(step.sampled, at, strict=True) if one in step.proposed
        ]
        for place in itertools.count():
            left = [
                (one, row + 1)
                for one, row in left
                if answers[one].end is None
                and place < len(step.proposed[one])
                and answers[one].tokens[place] == step.proposed[one][place]
            ]
            if not left:
                return
            rows = [one for one, _ in left]
            sampled = _sample(logits, [row for _, row in left], rows)
            for one, result in zip(rows, sampled, strict=True):
                self._take(answers[one], result)

    def _force(self, answer: _Answer) -> None:
        """Hand out what a sequence's constraint leaves no choice about."""
        sequence = answer.sequence
        sequence.forced = 0
        matcher = sequence.sampler.matcher
        # A shift makes room for one token.
        if matcher is None or self._shifts or not self.scheduler.takes_forced(sequence):
            return
        while answer.end is None and (forced := matcher.forced()):
            self._take(answer, Sampled(forced[0]))
            sequence.forced += 1
        sequence.forced_tokens += sequence.forced

    def _fail(self, step: Step, error: Exception) -> None:
        """End the sequences of a failed step; the others go on."""
        message = str(error)
        if not isinstance(error, IngotError):
            logger.error("a step failed", exc_info=error)
            message = f"the engine failed in a step: {error}"
        for sequence in step.sequences:
            sequence.distrust()
            self._end(sequence, FinishReason.ERROR, message)

    def _end_request(
        self, state: RequestState, reason: FinishReason, error: str | None = None
    ) -> None:
        for sequence in state.sequences:
            if sequence.index not in state.completions:
                self._end(sequence, reason, error)

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        self.scheduler.remove(sequence)
        self._deliver(sequence, reason, error)

    def _deliver(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """Hand out the completion of a sequence that has left its slot."""
        state = sequence.state
        last = len(state.completions) + 1 == len(state.sequences)
        if last and self._requests.get(state.request.id) is state:
            del self._requests[state.request.id]
        self.metrics.completed(sequence.complete(reason, error).timings)


def _score_prompts(step: Step, logits: StepLogits) -> list[int]:
    """Take what prompts want of a step's logits; return where those of each sampled row are: the
    first of them, where tokens were proposed.
    """
    if len(logits) == len(step.sampled):
        return list(range(len(logits)))
    whole, found, at = require_full_logits(logits), list[int](), 0
    sampled = set(step.sampled)
    for sequence, row in zip(step.sequences, step.rows, strict=True):
        drawn = 1 + len(step.proposed.get(sequence, ())) if sequence in sampled else 0
        scored = row.logits - drawn
        if scored and sequence.state.scores is not None:
            sequence.state.scores.take(whole[at : at + scored])
        at += row.logits
        if drawn:
            found.append(at - drawn)
    return found


def _sample(logits: StepLogits, at: list[int], sequences: Iterable[Sequence]) -> list[Sampled]:
    """A token for each sequence, from its row of the logits."""
    states = [one.sampler for one in sequences]
    if not states:
        return []
    return sample(logits if len(at) == len(logits) else logits[at], states)


def _unscored(sequence: Sequence) -> str | None:
    """Why the sequence's prompt could not be scored."""
    scores = sequence.state.scores
    return scores.error if scores else None
