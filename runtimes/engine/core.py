"""What the engine does in a step: schedule, run, sample, commit, deliver.

Everything here belongs to one thread.
"""

import logging
import time

from runtimes.engine.kv_cache import KvCache
from runtimes.engine.metrics import Metrics
from runtimes.engine.scheduler import Scheduler, Step
from runtimes.engine.sequence import RequestState, Sequence
from runtimes.errors import IngotError
from runtimes.request import FinishReason
from runtimes.runner import Logits, Runner, TopKLogits, require_full_logits
from runtimes.sampling import Sampled, sample
from runtimes.settings import PROMPT_CHUNK, RunnerSettings, SchedulerSettings

logger = logging.getLogger(__name__)


class EngineCore:
    """The state of all requests over one runner."""

    def __init__(
        self,
        runner: Runner,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        prefix_bytes: int,
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
        self.scheduler = Scheduler(self.kv, scheduling)
        self.graphs_reused = runner.graphs_reused  # see ``Runner``; the value of the last step
        self._runner = runner
        self._shifts = settings.context_shift and capabilities.can_shift
        if settings.context_shift and not capabilities.can_shift:
            logger.warning("this file's context cannot be shifted: answers end where it is full")
        self._requests: dict[str, RequestState] = {}

    def add(self, state: RequestState) -> None:
        """Take a request in."""
        sequence = Sequence(state)  # may fail: comes first
        state.sequences.append(sequence)
        if state.request.id in self._requests:
            self._deliver(sequence, FinishReason.ERROR, "a request with this id is already running")
            return
        self._requests[state.request.id] = state
        self.scheduler.add(sequence)

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
            logits = self._runner.execute(step.plan)
            native = time.perf_counter() - native_begin
            logits = _score_prompts(step, logits)
            sampled = sample(logits, [one.sampler for one in step.sampled]) if step.sampled else []
        except Exception as error:
            self._fail(step, error)
            return True
        if step.decoded and not step.prefill:
            self.kv.learn(len(step.sequences), native)
        self.graphs_reused = self._runner.graphs_reused
        decoded = sum(1 for one in step.sampled if one.output)
        drawn = list(zip(step.sampled, sampled, strict=True))
        drawn += self._fork(drawn, logits)
        tokens = [_output(one, result) for one, result in zip(step.sampled, sampled, strict=True)]
        self.scheduler.commit(step, tokens, time.perf_counter() - begin)
        ended = [(one, *end) for one, result in drawn if (end := self._accept(one, result))]
        prefilled = [one for one in step.sequences if one not in step.sampled]
        ended += [(one, *end) for one in prefilled if (end := _unscored(one))]
        self.metrics.step(
            prompt=step.prefill,
            sampled=len(sampled),
            decoded=decoded,
            native=native,
            whole=time.perf_counter() - begin,
        )
        # Last, so that whoever sees a completion sees its tokens in the figures too.
        for sequence, reason, message in ended:
            self._end(sequence, reason, message)
        return True

    def _fork(
        self, drawn: list[tuple[Sequence, Sampled]], logits: Logits | TopKLogits
    ) -> list[tuple[Sequence, Sampled]]:
        """Draw the first tokens of further samples from the logits that their first one used."""
        forked: list[tuple[Sequence, Sampled]] = []
        for row, (first, result) in enumerate(drawn):
            state, count = first.state, first.request.params.samples
            if count == 1 or first.index or first.output or result.token is None:
                continue
            others = [Sequence(state, index) for index in range(1, count)]
            state.sequences += others
            results = sample(logits[[row] * len(others)], [one.sampler for one in others])
            for other, one in zip(others, results, strict=True):
                other.started, other.reused = first.started, len(first.prompt)
                other.output = _output(other, one)
                self.scheduler.fork(first, other)
            forked += zip(others, results, strict=True)
        return forked

    def _accept(
        self, sequence: Sequence, sampled: Sampled
    ) -> tuple[FinishReason, str | None] | None:
        """Hand out the sampled token; return why the sequence ends with it, if it does."""
        if (end := _unscored(sequence)) is not None:
            return end
        if sampled.token is None:
            sequence.distrust()  # what its slot holds is no better
            return FinishReason.ERROR, sampled.error
        if sequence.request.params.max_tokens == 0:
            return FinishReason.LENGTH, None
        context = None if self._shifts else self.kv.capabilities.context
        reason = sequence.accept(sampled, sampled.token, context)
        if reason is None and self._shifts and not self.kv.make_room(sequence):
            reason = FinishReason.CONTEXT
        return (reason, None) if reason is not None else None

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


def _score_prompts(step: Step, logits: Logits | TopKLogits) -> Logits | TopKLogits:
    """Take what prompts want of a step's logits; return the rows that are sampled from."""
    if len(logits) == len(step.sampled):
        return logits
    whole, wanted, at = require_full_logits(logits), list[int](), 0
    for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
        sampled = len(row.tokens) == sequence.pending
        scored = row.logits - sampled
        if scored and sequence.state.scores is not None:
            sequence.state.scores.take(whole[at : at + scored])
        at += row.logits
        if sampled:
            wanted.append(at - 1)
    return whole[wanted]


def _unscored(sequence: Sequence) -> tuple[FinishReason, str] | None:
    """Why a sequence ends whose prompt could not be scored."""
    scores = sequence.state.scores
    if scores is None or scores.error is None:
        return None
    sequence.distrust()
    return FinishReason.ERROR, scores.error


def _output(sequence: Sequence, sampled: Sampled) -> list[int]:
    """The tokens that go behind a sequence."""
    if sampled.token is None or sequence.request.params.max_tokens == 0:
        return []
    return [sampled.token]
