"""Rows through one engine or several: keeps their slots full, follows conversations, hands over
each answer.

What a row may cost is bounded: it is asked again after a timeout or an error of the engine as often
as allowed, and one that kills a worker process twice fails (see ``suspects``). A worker that
dies takes nothing with it: rows that waited for it go to any engine, rows that it ran are asked one
at a time by the process that follows it, or by an engine that has nothing else to do. However many
rows kill a worker, the job goes on, as long as the worker can do anything at all: each process that
is started anew has to answer a single token first, and so many deaths without any answer between
them are the last ones. An engine that cannot be used any more is left out; the last one's failure
is the job's.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence

from app.batch.input.tasks import RowProblem
from app.batch.interrupt import Interrupts
from app.batch.output.records import answer_of, failure_of, is_whole
from app.batch.report.forecast import Begun
from app.batch.schedule.lane import Active, Lane, LaneState
from app.batch.schedule.supply import Supply
from app.batch.schedule.suspects import Suspects
from app.batch.schedule.work import Counts, Deliver, Terms, Work
from app.openai.logprobs import TokenTexts, token_logprobs
from app.prompts import PromptStyle, PromptTooLongError, encode
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams

_TICK_SECONDS = 0.2
# So many rows fail one after another only when the engine itself is broken: then it is given up
# instead of turning the rest of the input into errors.
_FAILURES_IN_A_ROW = 3
# The same for rows that kill the worker, of which each costs a start.
_DEATHS_IN_A_ROW = 32
_RAW = PromptStyle(raw=True)

_log = logging.getLogger(__name__)


class Job:
    """Drives engines over rows. Runs in one thread; only the done callbacks come from others."""

    def __init__(
        self, lanes: Sequence[Lane], terms: Terms, deliver: Deliver, texts: TokenTexts
    ) -> None:
        self.counts = Counts()
        self.begun = Begun()
        self._lanes = list(lanes)
        self._terms = terms
        self._deliver = deliver
        self._texts = texts
        self._suspects: Suspects[Active] = Suspects()
        # None wakes the job: an engine that was away is back, or lost.
        self._finished: queue.SimpleQueue[tuple[Lane, Completion] | None] = queue.SimpleQueue()
        trial = dataclasses.replace(
            terms.sampling,
            max_tokens=1,
            min_tokens=0,
            n=1,
            best_of=None,
            logprobs=False,
            top_logprobs=0,
        )
        for lane in lanes:
            lane.trial = trial

    def run(self, work: Iterator[Work], interrupts: Interrupts, tick: Callable[[], None]) -> bool:
        """Answer all of ``work``, calling ``tick`` a few times a second.

        True when all of it was done, False when interrupted. Raises IngotError when no engine can
        be used any more; whatever was delivered before stays delivered.
        """
        supply = Supply(work, len(self._lanes))
        drained = False
        given_up = 0
        try:
            while True:
                self._drop_lost()
                if not interrupts.draining:
                    self._refill(supply)
                if interrupts.stopping or self._over(supply, draining=interrupts.draining):
                    break
                if interrupts.draining and not drained:
                    drained = True
                    given_up = sum(map(self._give_up_waiting, self._lanes))
                self._collect(interrupts)
                self._count_running()
                tick()
        finally:
            given_up += len(self._suspects) + sum(len(lane.active) for lane in self._lanes)
            for lane in self._lanes:
                lane.cancel()
            self._count_running()
        return supply.exhausted and not given_up

    def _over(self, supply: Supply, *, draining: bool) -> bool:
        if any(lane.active for lane in self._lanes):
            return False
        return draining or (supply.exhausted and not len(self._suspects))

    def _drop_lost(self) -> None:
        """Take the rows of engines that cannot be used any more. Raises the last one's problem."""
        for lane in self._lanes:
            if lane.state is LaneState.LOST and (lane.active or not lane.told):
                lane.told = True
                _log.warning("%s is left out from now on: %s", lane.name, lane.problem)
                orphans = list(lane.active.values())
                lane.cancel()
                for active in orphans:
                    self._suspects.add(active, ran=active.alone)
        if all(lane.state is LaneState.LOST for lane in self._lanes):
            assert lane.problem is not None
            raise lane.problem

    def _refill(self, supply: Supply) -> None:
        """Start what there is room for."""
        for lane in self._lanes:
            if lane.state is LaneState.READY and not lane.ready and not lane.active:
                lane.revive(self._wake)  # it died with nothing to do
        self._start_suspects()
        # One row at a time, to whoever has the most room: at the end of the input each engine then
        # has its share.
        able = [lane for lane in self._lanes if lane.ready and not lane.reserved]
        while able:
            lane = max(able, key=lambda lane: self._room(lane) - len(lane.active))
            if len(lane.active) >= self._room(lane) or not lane.ready:
                able.remove(lane)
                continue
            again = self._suspects.next_innocent()
            if again is not None:
                self._begin(again, lane)
                continue
            item = supply.take(self._lanes.index(lane), self._room(lane))
            if item is None:
                return
            self._begin(Active(item, []), lane)

    def _room(self, lane: Lane) -> int:
        """Rows that an engine is given. As many wait as run: a slot that falls free is refilled
        within the engine's step. A row's time begins when it is submitted, so that with a limit
        none may wait."""
        if self._terms.timeout_s is None:
            return lane.engine.slots * 2
        return max(1, lane.engine.slots // self._terms.sampling.samples)

    def _start_suspects(self) -> None:
        """Give a suspect to each engine that has nothing else to do."""
        waiting = self._suspects.open
        for lane in self._lanes:
            lane.reserved = lane.alone or (waiting and lane.reserved)
        usable = [lane for lane in self._lanes if lane.state is not LaneState.LOST]
        if waiting and not any(lane.reserved for lane in usable):
            min(usable, key=lambda lane: len(lane.active)).reserved = True
        for lane in self._lanes:
            if lane.ready and not lane.active and self._suspects.open:
                lane.reserved = True
                suspect = self._suspects.next_suspect()
                suspect.alone = True
                self._begin(suspect, lane)

    def _begin(self, active: Active, lane: Lane) -> None:
        """Ask a row's first turn, for the first time or anew."""
        history = active.work.task.history
        active.messages = [{"role": m.role, "content": m.content} for m in history]
        active.completions.clear()
        if self._terms.timeout_s is not None:
            active.deadline = time.monotonic() + self._terms.timeout_s
        self._next_turn(active, lane)

    def _next_turn(self, active: Active, lane: Lane) -> None:
        turn = len(active.completions)
        active.messages.append({"role": "user", "content": active.work.task.turns[turn]})
        self._ask(active, lane)

    def _ask(self, active: Active, lane: Lane) -> None:
        turn, task = len(active.completions), active.work.task
        # What was written for completions has its own form already.
        style = _RAW if task.style == "openai-completions" else self._terms.style
        try:
            ids = encode(lane.engine, style, active.messages)
            active.params, active.prompt_tokens = self._params(active.work, turn), len(ids)
            active.tokens.clear()
            if not active.begun:
                active.begun = True
                self.begun.add(active.work, len(ids), self._asked(active.work))
            left = None if active.deadline is None else active.deadline - time.monotonic()
            request = Request(
                prompt=ids,
                params=active.params,
                priority=Priority(max(Priority.CRITICAL, active.rank)),
                timeout_s=None if left is None else max(left, 0.001),
            )
            active.request_id = request.id
            active.process = lane.engine.pid, lane.engine.slots
            lane.active[request.id] = active
            active.stream = stream = lane.engine.submit(request)
        except RequestError as error:
            lane.active.pop(active.request_id, None)
            long = isinstance(error, PromptTooLongError)
            code = "context_length_exceeded" if long else "invalid_request"
            where = f"turn {turn + 1}: " if turn else ""
            self._fail(active, lane, RowProblem(code, where + str(error)))
            return
        except IngotError as error:  # the worker died of it, or cannot be started
            lane.active.pop(active.request_id, None)
            self._died(lane, str(error))
            self._crashed(active, lane, True, str(error))
            return
        stream.add_done_callback(lambda completion: self._finished.put((lane, completion)))

    def _asked(self, work: Work) -> SamplingParams:
        return work.task.sampling or self._terms.sampling

    def _params(self, work: Work, turn: int) -> SamplingParams:
        """The row's parameters. Samples and log-probabilities are of the last turn; equal prompts
        get different samples by seeds of their own, the same in every run."""
        job, params = self._terms.sampling, self._asked(work)
        if params.seed is not None and params.seed == job.seed:
            params = dataclasses.replace(params, seed=params.seed + work.row.index)
        if turn + 1 < len(work.task.turns):
            params = dataclasses.replace(params, n=1, best_of=None, logprobs=False, top_logprobs=0)
        return params

    def _collect(self, interrupts: Interrupts) -> None:
        """Wait a moment for finished requests, and handle every one that is there."""
        try:
            item = self._finished.get(timeout=_TICK_SECONDS)
            while True:
                if item is not None:
                    self._handle(*item)
                if interrupts.stopping:
                    return
                item = self._finished.get_nowait()
        except queue.Empty:
            return

    def _handle(self, lane: Lane, completion: Completion) -> None:
        if completion.retryable and completion.id in lane.active:
            slots = lane.active[completion.id].process[1]
            if self._suspects.crashed(completion.id, lane.lost_with(completion.id), slots):
                self.counts.crashes = self._suspects.crashes
                lane.counts.crashes += 1
                lane.reserved = True
                self._died(lane, completion.error)
        ran = self._suspects.ended(completion.id)
        active = lane.active.pop(completion.id, None)
        if active is None:  # cancelled by this job
            return
        if completion.finish_reason is FinishReason.CANCELLED:
            raise IngotError("the engine stopped; run the same command again to resume")
        if completion.retryable:
            self._crashed(active, lane, ran, completion.error, completion.text)
        elif not is_whole(completion):
            self._failed(active, lane, completion)
        else:
            lane.failures_in_a_row = lane.deaths_in_a_row = 0
            self._answered(active, lane, completion)

    def _answered(self, active: Active, lane: Lane, completion: Completion) -> None:
        active.completions.append(completion)
        if len(active.completions) < len(active.work.task.turns):
            active.messages.append({"role": "assistant", "content": completion.text})
            self._next_turn(active, lane)
            return
        params = self._asked(active.work)
        wanted = params.logprobs or params.top_logprobs
        logprobs = token_logprobs(completion.choices, self._texts) if wanted else ()
        self._count(active, lane)
        self._deliver(active.work, answer_of(active.completions, logprobs), True)

    def _died(self, lane: Lane, reason: str | None) -> None:
        """The engine's process is gone: start another, or give the engine up."""
        lane.deaths_in_a_row += 1
        if lane.deaths_in_a_row < _DEATHS_IN_A_ROW:
            lane.revive(self._wake)
            return
        lane.lose(
            ModelError(
                f"{lane.name} died {lane.deaths_in_a_row} times, each time of the row that it ran, "
                f"with no answer between ({reason or 'for no known reason'}). The same command "
                "resumes; with --skip-failed it leaves out the rows that failed"
            )
        )

    def _crashed(
        self, active: Active, lane: Lane, ran: bool, reason: str | None, text: str = ""
    ) -> None:
        if active.alone:
            message = f"{reason or 'the worker process died'}, twice with this row"
            self._fail(active, lane, RowProblem("worker_crash", message), text)
            return
        self._suspects.add(active, ran=ran)

    def _failed(self, active: Active, lane: Lane, completion: Completion) -> None:
        """The row's time is over, or the engine could not do it: ask again if that is allowed."""
        late = completion.finish_reason is FinishReason.DEADLINE
        reason = completion.error or "the engine gave no reason"
        if not late:
            # What a row says of its own answer fails that row alone, however many such rows there
            # are. An engine that cannot be used any more, such as a worker that dies at every
            # start, is no row's fault.
            lane.failures_in_a_row += not self._own_constraint(active)
            problem = lane.usable()
            if lane.failures_in_a_row >= _FAILURES_IN_A_ROW * lane.most_slots:
                problem = IngotError(f"every row fails ({reason}); the job ends here")
            if problem is not None:
                lane.lose(problem)
                self._suspects.add(active, ran=active.alone)
                return
        if active.retries < self._terms.retries:
            active.retries += 1
            self.counts.retried += 1
            self._begin(active, lane)
            return
        fault = RowProblem("engine_error", reason)
        if late:
            said = f"not finished within {self._terms.timeout_s:g} s (--row-timeout)"
            fault = RowProblem("timeout", said)
        self._fail(active, lane, fault, completion.text)

    def _own_constraint(self, active: Active) -> bool:
        own, job = active.work.task.sampling, self._terms.sampling
        return own is not None and own.constraint not in (None, job.constraint)

    def _fail(self, active: Active, lane: Lane, problem: RowProblem, partial: str = "") -> None:
        self._count(active, lane, problem.code)
        self._deliver(active.work, failure_of(problem, active.completions, partial), False)

    def _count(self, active: Active, lane: Lane, error: str | None = None) -> None:
        """Count a finished row, for the job and for its engine."""
        for counts in (self.counts, lane.counts):
            counts.finished(active.completions, error)

    def _give_up_waiting(self, lane: Lane) -> int:
        """Take back what has no slot yet, and say how many rows that is. Slots are given in order,
        so it is what was submitted last."""
        waiting = lane.by_slot()[lane.engine.slots :]
        for active in waiting:
            del lane.active[active.request_id]
            lane.engine.cancel(active.request_id)
        _log.debug("%s drains: %d rows run on, %d wait", lane.name, len(lane.active), len(waiting))
        return len(waiting)

    def _count_running(self) -> None:
        working: list[int] = []
        for lane in self._lanes:
            slots = lane.by_slot()[: lane.engine.slots]
            lane.counts.running = len(slots)
            working += [active.work.row.index for active in slots]
        self.counts.running, self.counts.working = len(working), tuple(working)

    def _wake(self) -> None:
        self._finished.put(None)
