"""Rows through the engine: keeps its slots full, follows conversations, hands over each answer."""

from __future__ import annotations

import dataclasses
import logging
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.batch.interrupt import Interrupts
from app.batch.records import answer_of, failure_of, is_whole
from app.batch.source import Row
from app.batch.tasks import RowProblem, Task
from app.prompts import PromptStyle, PromptTooLongError, encode
from runtimes.api import EngineApi
from runtimes.chat import Message
from runtimes.errors import IngotError, RequestError
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams

_TICK_SECONDS = 0.2
# So many rows fail one after another only when the engine itself is broken: then the job ends
# instead of turning the rest of the input into errors.
_FAILURES_IN_A_ROW = 3
# A dead worker process takes every row in work with it. The next one may die of the same before it
# is started with safer settings, so that a row is asked again more than once.
_RETRIES = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """A row that the model has to answer, and the key of its answer."""

    row: Row
    task: Task
    key: bytes


@dataclass(slots=True)
class Counts:
    """What the job has done so far. Tokens are of finished rows."""

    answered: int = 0
    failed: int = 0
    running: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Active:
    """A row between its first turn and its last."""

    work: Work
    messages: list[Message]
    completions: list[Completion] = field(default_factory=list)
    request_id: str = ""
    retries: int = 0


# What becomes of a finished row: its work, its answer or error, and which of the two it is.
Deliver = Callable[[Work, dict[str, Any], bool], None]


class Job:
    """Drives an engine over rows. Runs in one thread; only the done callbacks come from another."""

    def __init__(
        self, engine: EngineApi, sampling: SamplingParams, style: PromptStyle, deliver: Deliver
    ) -> None:
        self.counts = Counts()
        self._engine = engine
        self._sampling = sampling
        self._style = style
        self._deliver = deliver
        # As many rows wait as run: a slot that falls free is refilled within the engine's step.
        self._window = 2 * engine.slots
        self._active: dict[str, _Active] = {}  # in the order in which the rows were started
        self._finished: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._failures_in_a_row = 0

    def run(self, work: Iterator[Work], interrupts: Interrupts, tick: Callable[[], None]) -> bool:
        """Answer all of ``work``, calling ``tick`` a few times a second.

        True when all of it was done, False when interrupted. Raises IngotError when the engine
        fails altogether; whatever was delivered before stays delivered.
        """
        exhausted = drained = False
        given_up = 0
        try:
            while True:
                while not (exhausted or interrupts.draining) and len(self._active) < self._window:
                    item = next(work, None)
                    exhausted = item is None
                    if item is not None:
                        self._start(item)
                if interrupts.stopping or not self._active:
                    break
                if interrupts.draining and not drained:
                    drained = True
                    given_up = self._give_up_waiting()
                self._collect(interrupts)
                self.counts.running = len(self._active)
                tick()
        finally:
            given_up += len(self._active)
            self._cancel_all()
        return exhausted and not given_up

    def _start(self, work: Work) -> None:
        history = [{"role": m.role, "content": m.content} for m in work.task.history]
        self._next_turn(_Active(work, list(history)))

    def _next_turn(self, active: _Active) -> None:
        turn = len(active.completions)
        active.messages.append({"role": "user", "content": active.work.task.turns[turn]})
        self._ask(active)

    def _ask(self, active: _Active) -> None:
        turn = len(active.completions)
        try:
            ids = encode(self._engine, self._style, active.messages)
            request = Request(
                prompt=ids,
                params=self._params(active.work.row.index),
                # A conversation that is under way goes on before a new one starts.
                priority=Priority.HIGH if turn else Priority.NORMAL,
            )
            active.request_id = request.id
            self._active[request.id] = active
            stream = self._engine.submit(request)
        except RequestError as error:
            self._active.pop(active.request_id, None)
            long = isinstance(error, PromptTooLongError)
            code = "context_length_exceeded" if long else "invalid_request"
            where = f"turn {turn + 1}: " if turn else ""
            self._fail(active, RowProblem(code, where + str(error)))
            return
        stream.add_done_callback(self._finished.put)

    def _params(self, index: int) -> SamplingParams:
        """The row's own seed: equal prompts get different samples, the same in every run."""
        if self._sampling.seed is None:
            return self._sampling
        return dataclasses.replace(self._sampling, seed=self._sampling.seed + index)

    def _collect(self, interrupts: Interrupts) -> None:
        """Wait a moment for finished requests, and handle every one that is there."""
        try:
            self._handle(self._finished.get(timeout=_TICK_SECONDS))
            while not interrupts.stopping:
                self._handle(self._finished.get_nowait())
        except queue.Empty:
            return

    def _handle(self, completion: Completion) -> None:
        active = self._active.pop(completion.id, None)
        if active is None:  # cancelled by this job
            return
        if completion.finish_reason is FinishReason.CANCELLED:
            raise IngotError("the engine stopped; run the same command again to go on")
        if completion.retryable and active.retries < _RETRIES:
            active.retries += 1
            self._ask(active)
            return
        if not is_whole(completion):
            self._engine_failure(active, completion.error or "the engine gave no reason")
            return
        self._failures_in_a_row = 0
        active.completions.append(completion)
        if len(active.completions) < len(active.work.task.turns):
            active.messages.append({"role": "assistant", "content": completion.text})
            self._next_turn(active)
            return
        self.counts.answered += 1
        self._count_tokens(active)
        self._deliver(active.work, answer_of(active.completions), True)

    def _engine_failure(self, active: _Active, reason: str) -> None:
        self._fail(active, RowProblem("engine_error", reason))
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= _FAILURES_IN_A_ROW * self._engine.slots:
            raise IngotError(f"every row fails ({reason}); the job ends here")

    def _fail(self, active: _Active, problem: RowProblem) -> None:
        self.counts.failed += 1
        self._count_tokens(active)
        self._deliver(active.work, failure_of(problem, active.completions), False)

    def _count_tokens(self, active: _Active) -> None:
        for completion in active.completions:
            self.counts.prompt_tokens += completion.usage.prompt_tokens
            self.counts.completion_tokens += completion.usage.completion_tokens

    def _give_up_waiting(self) -> int:
        """Take back what has no slot yet, and say how many rows that is. Slots are given in order,
        so it is what came last."""
        by_age = sorted(self._active.values(), key=lambda active: active.work.row.index)
        waiting = by_age[self._engine.slots :]
        for active in waiting:
            del self._active[active.request_id]
            self._engine.cancel(active.request_id)
        _log.debug("draining: %d rows run on, %d wait for the next run", len(by_age), len(waiting))
        return len(waiting)

    def _cancel_all(self) -> None:
        for request_id in self._active:
            self._engine.cancel(request_id)
        self._active.clear()
        self.counts.running = 0
