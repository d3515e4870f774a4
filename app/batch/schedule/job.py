"""Rows through one engine or several: keeps their slots full, follows conversations, hands over
each answer.

What a row may cost is bounded: it is asked again after a timeout or an error of the engine as often
as allowed, and one that kills a worker process twice fails. A worker that
dies takes nothing with it: rows that waited for it go to any engine, rows that it ran are asked one
at a time by the process that follows it, or by an engine that has nothing else to do. However many
rows kill a worker, the job continues as long as the worker can do anything at all: each new process
has to answer a single token first, and so many deaths without any answer between them are the last
ones. An engine that cannot be used any more is left out; the last one's failure is the job's.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.batch.input.source import Row
from app.batch.interrupt import Interrupts
from app.batch.report.eta import BegunRows, RowCounts
from app.batch.schedule.pending_rows import RowDispatcher
from app.batch.schedule.pool_engine import EngineState, InFlightRow, PoolEngine
from app.openai.answer import Answer, failure_of
from app.openai.prepare import prepare
from app.openai.result import result
from app.openai.validation import Problem
from app.prompts import PromptStyle, refusal_code
from runtimes.chat import Message
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.request import Completion, FinishReason, Priority, SamplingParams
from runtimes.untrusted import JsonObject

_TICK_SECONDS = 0.2
# So many rows fail one after another only when the engine itself is broken: then it is given up
# instead of turning the rest of the input into errors.
_FAILURES_IN_A_ROW = 3
# The same for rows that kill the worker, of which each costs a start.
_DEATHS_IN_A_ROW = 32
_ONE_SAMPLE: JsonObject = {"n": 1, "best_of": None, "logprobs": False, "top_logprobs": 0}

# Takes each finished row with its answer or error.
Deliver = Callable[[Row, Answer], None]


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """How rows are asked."""

    sampling: SamplingParams  # of rows without their own, as is the style
    style: PromptStyle
    timeout_s: float | None = None  # for all turns of a row together
    retries: int = 1  # how often a row is asked again after a timeout or an error of the engine


def _answered(completion: Completion) -> Message:
    """The answer as the next turn's template reads it: whether it wants the thought is its own."""
    said: JsonObject = {"role": "assistant", "content": completion.text}
    if completion.thought is not None:
        said["reasoning_content"] = completion.thought
    return said


class Job:
    """Drives engines over rows. Runs in one thread; only the done callbacks come from others."""

    def __init__(
        self, members: Sequence[PoolEngine], defaults: RequestDefaults, deliver: Deliver
    ) -> None:
        self.counts = RowCounts()
        self.begun = BegunRows()
        self.members = list(members)
        self._defaults = defaults
        self._deliver = deliver
        # What a dead worker ran: any of it may have killed it. Each is asked again alone, and one
        # that kills a worker a second time is to blame; the others have lost nothing but time.
        self._suspects: deque[InFlightRow] = deque()
        self._innocent: deque[InFlightRow] = deque()  # what waited for a slot
        # None wakes the job: an engine that was away is back, or lost.
        self._finished = queue.SimpleQueue[tuple[PoolEngine, Completion] | None]()
        self._trial = replace(defaults.sampling, max_tokens=1, min_tokens=0, **_ONE_SAMPLE)

    def run(self, rows: Iterator[Row], interrupts: Interrupts, tick: Callable[[], None]) -> bool:
        """Answer all of ``rows``, calling ``tick`` a few times a second.

        True when all were done, False when interrupted. Raises IngotError when no engine can
        be used any more; whatever was delivered before stays delivered.
        """
        dispatcher = RowDispatcher(rows, len(self.members))
        drained = False
        given_up = 0
        try:
            while True:
                self._drop_lost()
                if not interrupts.draining:
                    self._refill(dispatcher)
                idle = not any(member.rows for member in self.members)
                done = dispatcher.exhausted and not (self._suspects or self._innocent)
                if interrupts.stopping or (idle and (done or interrupts.draining)):
                    break
                if interrupts.draining and not drained:
                    drained = True
                    given_up = sum(map(self._give_up_waiting, self.members))
                self._collect(interrupts)
                tick()
        finally:
            given_up += len(self._suspects) + len(self._innocent)
            given_up += sum(len(member.cancel()) for member in self.members)
        return dispatcher.exhausted and not given_up

    def _drop_lost(self) -> None:
        """Take the rows of engines that cannot be used any more. Raises the last one's problem."""
        lost = [member for member in self.members if member.state is EngineState.LOST]
        for member in lost:
            for row in member.cancel():
                self._take_back(row)
        if len(lost) == len(self.members):
            assert lost[-1].problem is not None
            raise lost[-1].problem

    def _take_back(self, row: InFlightRow) -> None:
        (self._suspects if row.alone else self._innocent).append(row)

    def _refill(self, dispatcher: RowDispatcher) -> None:
        """Start what there is room for."""
        for member in self.members:
            if member.state is EngineState.READY and not member.ready and not member.rows:
                self._revive(member)  # it died with nothing to do
        self._start_suspects()
        # One row at a time, to whoever has the most room: at the end of the input each engine then
        # has its share.
        able = [member for member in self.members if member.ready and not member.reserved]
        while able:
            member = max(able, key=lambda member: self._room(member) - len(member.rows))
            if len(member.rows) >= self._room(member) or not member.ready:
                able.remove(member)
                continue
            if self._innocent:
                self._begin(self._innocent.popleft(), member)
                continue
            item = dispatcher.take(self.members.index(member), self._room(member))
            if item is None:
                return
            self._begin(InFlightRow(item, []), member)

    def _room(self, member: PoolEngine) -> int:
        """Rows that an engine is given. As many wait as run: a slot that falls free is refilled
        within the engine's step. A row's time begins when it is submitted, so that with a limit
        none may wait."""
        if self._defaults.timeout_s is None:
            return member.engine.slots * 2
        return max(1, member.engine.slots // self._defaults.sampling.samples)

    def _start_suspects(self) -> None:
        """Give a suspect to each engine that has nothing else to do."""
        waiting = bool(self._suspects)
        for member in self.members:
            runs_one = any(row.alone for row in member.rows.values())
            member.reserved = runs_one or (waiting and member.reserved)
        usable = [member for member in self.members if member.state is not EngineState.LOST]
        if waiting and not any(member.reserved for member in usable):
            min(usable, key=lambda member: len(member.rows)).reserved = True
        for member in self.members:
            if member.ready and not member.rows and self._suspects:
                member.reserved = True
                suspect = self._suspects.popleft()
                suspect.alone = True
                self._begin(suspect, member)

    def _begin(self, row: InFlightRow, member: PoolEngine) -> None:
        """Ask a row's first turn, for the first time or anew."""
        row.messages = list(row.input.task.history)
        row.completions.clear()
        row.requests.clear()
        if self._defaults.timeout_s is not None:
            row.deadline = time.monotonic() + self._defaults.timeout_s
        self._ask(row, member)

    def _ask(self, row: InFlightRow, member: PoolEngine) -> None:
        """Ask the next turn or part."""
        turn, task = len(row.completions), row.asks
        if row.input.task.parts:
            row.messages = task.opening
        elif task.turns:
            row.messages.append({"role": "user", "content": task.turns[turn]})
        try:
            params, style = self._params(row, turn), self._defaults.style
            said = prepare(task, member.engine, params, style, messages=row.messages)
            row.parser = said.form.parser
            row.tokens.clear()
            left = None if row.deadline is None else row.deadline - time.monotonic()
            request = said.request(
                priority=Priority(max(Priority.CRITICAL, row.rank)),
                timeout_s=None if left is None else max(left, 0.001),
                adapter=member.adapter if (own := row.input.task.adapter) is None else own.name,
                followed=turn + 1 < len(task.turns),
            )
            row.requests.append(request)
            if not row.begun:
                row.begun = True
                most = said.params if row.input.task.parts else self._asked(row)
                self.begun.add(row.input, len(said.ids), most)
                if member.beginning is not None and request.adapter is None:
                    member.beginning.before(said.ids)
            row.process = member.engine.pid, member.engine.slots
            member.rows[request.id] = row
            row.stream = stream = member.engine.submit(request)
        except RequestError as error:
            member.rows.pop(row.request_id, None)
            name = "part" if row.input.task.parts else "turn"
            where = f"{name} {turn + 1}: " if turn else ""
            self._fail(row, member, Problem(refusal_code(error), where + str(error)))
            return
        except IngotError as error:  # the worker died of it, or cannot be started
            member.rows.pop(row.request_id, None)
            self._died(member, str(error))
            self._crashed(row, member, str(error))
            return
        stream.add_done_callback(lambda completion: self._finished.put((member, completion)))

    def _asked(self, row: InFlightRow) -> SamplingParams:
        return row.asks.sampling or self._defaults.sampling

    def _params(self, row: InFlightRow, turn: int) -> SamplingParams:
        """The row's parameters. Samples and log-probabilities are of the last turn; equal prompts
        get different samples by seeds of their own, the same in every run."""
        job, params = self._defaults.sampling, self._asked(row)
        if params.seed is not None and params.seed == job.seed:
            params = replace(params, seed=params.seed + row.input.index)
        if turn + 1 < len(row.asks.turns):
            params = replace(params, **_ONE_SAMPLE)
        return params

    def _collect(self, interrupts: Interrupts) -> None:
        """Wait a moment for finished requests, and handle every one that is there."""
        with suppress(queue.Empty):
            item = self._finished.get(timeout=_TICK_SECONDS)
            while True:
                if item is not None:
                    self._handle(*item)
                if interrupts.stopping:
                    return
                item = self._finished.get_nowait()

    def _handle(self, member: PoolEngine, completion: Completion) -> None:
        row = member.rows.get(completion.id)
        if row is None:  # cancelled by this job, or taken back when its process died
            return
        if completion.retryable:
            self._process_died(row.process, member, completion)
            return
        del member.rows[completion.id]
        if completion.finish_reason is FinishReason.CANCELLED:
            raise IngotError("the engine stopped; run the same command again to resume")
        if completion.finish_reason in (FinishReason.ERROR, FinishReason.DEADLINE):
            self._failed(row, member, completion)
        else:
            member.failures_in_a_row = member.deaths_in_a_row = 0
            self._answered(row, member, completion)

    def _answered(self, row: InFlightRow, member: PoolEngine, completion: Completion) -> None:
        row.completions.append(completion)
        if len(row.completions) < row.input.task.asked:
            row.messages.append(_answered(completion))
            self._ask(row, member)
            return
        try:
            answer = result(row.input.task, row.requests, row.completions, row.parser)
        except RequestError as error:
            self._fail(row, member, Problem("invalid_value", str(error)))
        else:
            self._end(row, member, answer)

    def _process_died(
        self, process: tuple[int | None, int], member: PoolEngine, completion: Completion
    ) -> None:
        """The first of a process's rows tells of its death: take back all that it had."""
        self.counts.crashes += 1
        member.counts.crashes += 1
        member.reserved = True
        self._died(member, completion.error)
        lost = [row for row in member.by_slot() if row.process == process]
        for at, row in enumerate(lost):
            del member.rows[row.request_id]
            if at < process[1]:
                self._crashed(row, member, completion.error, completion.text)
            else:
                self._innocent.append(row)

    def _revive(self, member: PoolEngine) -> None:
        member.revive(self._trial, lambda: self._finished.put(None))

    def _died(self, member: PoolEngine, reason: str | None) -> None:
        """The engine's process is gone: start another, or give the engine up."""
        member.deaths_in_a_row += 1
        if member.deaths_in_a_row < _DEATHS_IN_A_ROW:
            self._revive(member)
            return
        member.lose(
            ModelError(
                f"{member.name} died {member.deaths_in_a_row} times, each time of the row that it "
                f"ran, with no answer between ({reason or 'for no known reason'}). The same "
                "command resumes; with --skip-failed it leaves out the rows that failed"
            )
        )

    def _crashed(
        self, row: InFlightRow, member: PoolEngine, reason: str | None, text: str = ""
    ) -> None:
        """A row's process died while it ran."""
        if row.alone:
            message = f"{reason or 'the worker process died'}, twice with this row"
            self._fail(row, member, Problem("worker_crash", message), text)
        else:
            self._suspects.append(row)

    def _failed(self, row: InFlightRow, member: PoolEngine, completion: Completion) -> None:
        """The row's time is over, or the engine could not do it: ask again if that is allowed."""
        late = completion.finish_reason is FinishReason.DEADLINE
        reason = completion.error or "the engine gave no reason"
        if not late:
            # What a row says of its own answer fails that row alone, however many such rows there
            # are. An engine that cannot be used any more, such as a worker that dies at every
            # start, is no row's fault.
            constraint = self._asked(row).constraint
            member.failures_in_a_row += constraint in (None, self._defaults.sampling.constraint)
            problem = member.usable()
            if member.failures_in_a_row >= _FAILURES_IN_A_ROW * member.most_slots:
                problem = IngotError(f"every row fails ({reason}); the job ends here")
            if problem is not None:
                member.lose(problem)
                self._take_back(row)
                return
        if row.retries < self._defaults.retries:
            row.retries += 1
            self.counts.retried += 1
            self._begin(row, member)
            return
        code = "engine_error"
        if late:
            code = "timeout"
            reason = f"not finished within {self._defaults.timeout_s:g} s (--row-timeout)"
        self._fail(row, member, Problem(code, reason), completion.text)

    def _fail(
        self, row: InFlightRow, member: PoolEngine, problem: Problem, partial: str = ""
    ) -> None:
        earlier = () if row.input.task.parts else row.completions
        self._end(row, member, failure_of(problem, earlier, partial))

    def _end(self, row: InFlightRow, member: PoolEngine, answer: Answer) -> None:
        """Count a finished row, for the job and for its engine, and deliver it."""
        for counts in (self.counts, member.counts):
            counts.finished(answer.error, row.completions)
        self._deliver(row.input, answer)

    def _give_up_waiting(self, member: PoolEngine) -> int:
        """Take back what has no slot yet, and say how many rows that is. Slots are given in order,
        so it is what was submitted last."""
        waiting = member.by_slot()[member.engine.slots :]
        for row in waiting:
            del member.rows[row.request_id]
            member.engine.cancel(row.request_id)
        return len(waiting)
