"""Rows through the engine: keeps its slots full, follows conversations, hands over each answer.

What a row may cost is bounded: it is asked again after a timeout or an error of the engine as often
as allowed, and one that kills the worker process twice fails (see app.batch.suspects).
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.batch.interrupt import Interrupts
from app.batch.logprobs import TokenTexts, token_logprobs
from app.batch.records import answer_of, failure_of, is_whole
from app.batch.suspects import Suspects
from app.batch.tasks import RowProblem
from app.batch.work import Counts, Deliver, Terms, Work
from app.prompts import PromptStyle, PromptTooLongError, encode
from runtimes.api import EngineApi
from runtimes.chat import Message
from runtimes.errors import IngotError, RequestError
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams

_TICK_SECONDS = 0.2
# So many rows fail one after another only when the engine itself is broken: then the job ends
# instead of turning the rest of the input into errors.
_FAILURES_IN_A_ROW = 3
_RAW = PromptStyle(raw=True)

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Active:
    """A row between its first turn and its last."""

    work: Work
    messages: list[Message]
    completions: list[Completion] = field(default_factory=list)
    request_id: str = ""
    retries: int = 0
    alone: bool = False  # a suspect, which runs with no other row
    deadline: float | None = None


class Job:
    """Drives an engine over rows. Runs in one thread; only the done callbacks come from another."""

    def __init__(
        self, engine: EngineApi, terms: Terms, deliver: Deliver, texts: TokenTexts
    ) -> None:
        self.counts = Counts()
        self._engine = engine
        self._terms = terms
        self._deliver = deliver
        self._texts = texts
        # A worker that is started anew may have fewer slots.
        self._most_slots = engine.slots
        self._active: dict[str, _Active] = {}  # in the order in which the rows were started
        self._suspects: Suspects[_Active] = Suspects(engine.slots)
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
                if not interrupts.draining:
                    exhausted = self._refill(work) or exhausted
                if interrupts.stopping or not self._active:
                    break
                if interrupts.draining and not drained:
                    drained = True
                    given_up = self._give_up_waiting()
                self._collect(interrupts)
                with_slot = self._by_slot()[: self._engine.slots]
                self.counts.running = len(with_slot)
                self.counts.working = tuple(active.work.row.index for active in with_slot)
                tick()
        finally:
            given_up += len(self._active) + len(self._suspects)
            self._cancel_all()
        return exhausted and not given_up

    def _refill(self, work: Iterator[Work]) -> bool:
        """Start what there is room for; True when there is no more work."""
        if self._suspects.open:
            if not self._active:
                suspect = self._suspects.next_suspect()
                suspect.alone = True
                self._begin(suspect)
            return False
        # As many rows wait as run: a slot that falls free is refilled within the engine's step.
        # A row's time begins when it is submitted, so that with a limit none may wait.
        room = self._engine.slots * 2
        if self._terms.timeout_s is not None:
            room = max(1, self._engine.slots // self._terms.sampling.samples)
        while len(self._active) < room:
            again = self._suspects.next_innocent()
            item = None if again else next(work, None)
            if again is not None:
                self._begin(again)
            elif item is not None:
                self._begin(_Active(item, []))
            else:
                return True
        return False

    def _begin(self, active: _Active) -> None:
        """Ask a row's first turn, for the first time or anew."""
        history = active.work.task.history
        active.messages = [{"role": m.role, "content": m.content} for m in history]
        active.completions.clear()
        if self._terms.timeout_s is not None:
            active.deadline = time.monotonic() + self._terms.timeout_s
        self._next_turn(active)

    def _next_turn(self, active: _Active) -> None:
        turn = len(active.completions)
        active.messages.append({"role": "user", "content": active.work.task.turns[turn]})
        self._ask(active)

    def _ask(self, active: _Active) -> None:
        turn, task = len(active.completions), active.work.task
        # What was written for completions has its own form already.
        style = _RAW if task.style == "openai-completions" else self._terms.style
        left = None if active.deadline is None else active.deadline - time.monotonic()
        try:
            ids = encode(self._engine, style, active.messages)
            request = Request(
                prompt=ids,
                params=self._params(active.work, turn),
                # A conversation that is under way goes on before a new one starts.
                priority=Priority(max(Priority.CRITICAL, task.priority - bool(turn))),
                timeout_s=None if left is None else max(left, 0.001),
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

    def _params(self, work: Work, turn: int) -> SamplingParams:
        """The row's parameters. Samples and log-probabilities are of the last turn; equal prompts
        get different samples by seeds of their own, the same in every run."""
        job, params = self._terms.sampling, work.task.sampling or self._terms.sampling
        if params.seed is not None and params.seed == job.seed:
            params = dataclasses.replace(params, seed=params.seed + work.row.index)
        if turn + 1 < len(work.task.turns):
            params = dataclasses.replace(params, n=1, best_of=None, logprobs=False, top_logprobs=0)
        return params

    def _collect(self, interrupts: Interrupts) -> None:
        """Wait a moment for finished requests, and handle every one that is there."""
        try:
            self._handle(self._finished.get(timeout=_TICK_SECONDS))
            while not interrupts.stopping:
                self._handle(self._finished.get_nowait())
        except queue.Empty:
            return

    def _handle(self, completion: Completion) -> None:
        if completion.retryable:
            by_slot = [active.request_id for active in self._by_slot()]
            self._suspects.crashed(completion.id, by_slot)
            self.counts.crashes = self._suspects.crashes
        ran = self._suspects.ended(completion.id)
        active = self._active.pop(completion.id, None)
        if active is None:  # cancelled by this job
            return
        if completion.finish_reason is FinishReason.CANCELLED:
            raise IngotError("the engine stopped; run the same command again to go on")
        if completion.retryable:
            self._crashed(active, ran, completion)
        elif not is_whole(completion):
            self._failed(active, completion)
        else:
            self._failures_in_a_row = 0
            self._answered(active, completion)

    def _answered(self, active: _Active, completion: Completion) -> None:
        active.completions.append(completion)
        if len(active.completions) < len(active.work.task.turns):
            active.messages.append({"role": "assistant", "content": completion.text})
            self._next_turn(active)
            return
        params = active.work.task.sampling or self._terms.sampling
        wanted = params.logprobs or params.top_logprobs
        logprobs = token_logprobs(completion.choices, self._texts) if wanted else ()
        self.counts.answered += 1
        self._count_tokens(active)
        self._deliver(active.work, answer_of(active.completions, logprobs), True)

    def _crashed(self, active: _Active, ran: bool, completion: Completion) -> None:
        if active.alone:
            message = f"{completion.error or 'the worker process died'}, twice with this row"
            self._fail(active, RowProblem("worker_crash", message), completion.text)
            return
        self._suspects.add(active, ran=ran)

    def _failed(self, active: _Active, completion: Completion) -> None:
        """The row's time is over, or the engine could not do it: ask again if that is allowed."""
        late = completion.finish_reason is FinishReason.DEADLINE
        if not late:
            # An engine that cannot be used any more, such as a worker that dies at every start,
            # is no row's fault: this raises what is wrong with it, and the job ends.
            self._engine.encode(".")
            self._failures_in_a_row += 1
        reason = completion.error or "the engine gave no reason"
        if self._failures_in_a_row >= _FAILURES_IN_A_ROW * self._most_slots:
            raise IngotError(f"every row fails ({reason}); the job ends here")
        if active.retries < self._terms.retries:
            active.retries += 1
            self.counts.retried += 1
            self._begin(active)
            return
        problem = RowProblem("engine_error", reason)
        if late:
            said = f"not finished within {self._terms.timeout_s:g} s (--row-timeout)"
            problem = RowProblem("timeout", said)
        self._fail(active, problem, completion.text)

    def _fail(self, active: _Active, problem: RowProblem, partial: str = "") -> None:
        self.counts.failed += 1
        self.counts.errors[problem.code] += 1
        self._count_tokens(active)
        self._deliver(active.work, failure_of(problem, active.completions, partial), False)

    def _count_tokens(self, active: _Active) -> None:
        for completion in active.completions:
            self.counts.prompt_tokens += completion.usage.prompt_tokens
            self.counts.cached_tokens += completion.usage.cached_tokens
            for choice in completion.choices:
                self.counts.completion_tokens += choice.usage.completion_tokens

    def _give_up_waiting(self) -> int:
        """Take back what has no slot yet, and say how many rows that is. Slots are given in order,
        so it is what was submitted last."""
        waiting = self._by_slot()[self._engine.slots :]
        for active in waiting:
            del self._active[active.request_id]
            self._engine.cancel(active.request_id)
        _log.debug("draining: %d rows run on, %d wait", len(self._active), len(waiting))
        return len(waiting)

    def _by_slot(self) -> list[_Active]:
        """What is in work in the order in which slots are given."""
        return sorted(
            self._active.values(), key=lambda row: row.work.task.priority - bool(row.completions)
        )

    def _cancel_all(self) -> None:
        for request_id in self._active:
            self._engine.cancel(request_id)
        self._active.clear()
        self.counts.running, self.counts.working = 0, ()
