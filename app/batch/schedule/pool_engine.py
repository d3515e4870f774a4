"""One engine of a job: what it works on, what it has done, whether it can be given more."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.batch.input.source import Row
from app.batch.report.eta import RowCounts, RowProgress
from app.models.prefixes import LEAST_TOKENS, SavedPrefixes
from app.openai.task import Task
from app.openai.tool_parser import ToolParser
from runtimes.api import EngineApi, RequestEngine
from runtimes.chat import Message
from runtimes.engine.prefix_pool import common_prefix
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.request import Completion, FinishReason, Priority, Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.stream import Stream


@dataclass(slots=True)
class Beginning:
    """Common beginning of the rows of one engine, which was loaded with ``settings``: taken from
    the disk before they are read, and saved once, at the end."""

    prefixes: SavedPrefixes
    engine: EngineApi
    settings: RunnerSettings
    _common: Sequence[int] = ()  # or the only prompt so far
    _rows: int = 0  # that begin with it
    _process: int | None = None  # that was given what was on disk

    def before(self, prompt: Sequence[int]) -> None:
        """Prepare for a row's first prompt, which will be asked now."""
        shared, process = common_prefix(self._common, prompt), self.engine.pid
        # Rows that begin alike would find the same file: only the first of them looks for it.
        if shared < LEAST_TOKENS or process != self._process:
            self.prefixes.before(self.engine, self.settings, prompt)
            self._process = process
        if shared >= LEAST_TOKENS:
            self._common, self._rows = self._common[:shared], self._rows + 1
        elif self._rows <= 1:
            self._common, self._rows = prompt, 1

    def keep(self) -> None:
        """Save what two rows or more began with."""
        if self._rows > 1:
            self.prefixes.keep(self.engine, self.settings, self._common)


# A kill from outside may hit the trial of a process too; one that is broken dies of each.
_TRIALS = 3

_log = logging.getLogger(__name__)


class EngineState(StrEnum):
    """Whether an engine may be given rows."""

    READY = "ready"
    AWAY = "away"  # its process died, and another one is being started
    LOST = "lost"  # it cannot be used any more in this job


@dataclass(slots=True, eq=False)
class InFlightRow:
    """A row between its first turn and its last."""

    input: Row
    messages: list[Message]
    completions: list[Completion] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)  # of each turn or part so far
    process: tuple[int | None, int] = (None, 0)  # that it was given to: its id, its slots
    retries: int = 0
    alone: bool = False  # a suspect, which runs with no other row
    deadline: float | None = None
    begun: bool = False  # whether it was ever given to an engine
    parser: Callable[[], ToolParser | None] = lambda: None  # finds calls of tools in its answer
    stream: Stream | None = None
    tokens: Counter[int] = field(default_factory=Counter)  # of each sample of this turn, so far

    def progress(self) -> RowProgress:
        """Progress of a row that has a slot."""
        for chunk in self.stream.take() if self.stream else ():
            self.tokens[chunk.index] += len(chunk.token_ids)
        asked = self.requests[-1]
        most = asked.params.max_tokens
        return RowProgress(
            answers=[(self.tokens[i], most) for i in range(asked.params.samples)],
            later=self.input.task.asked - len(self.completions) - 1,
            unread=0 if self.tokens else len(asked.prompt),
        )

    @property
    def request_id(self) -> str:
        """Id of the present request."""
        return self.requests[-1].id if self.requests else ""

    @property
    def asks(self) -> Task:
        """Task that is asked now: the row's, or the part of it whose turn it is."""
        task = self.input.task
        return task.parts[len(self.completions)] if task.parts else task

    @property
    def rank(self) -> int:
        """Slots are given by this, then by age: a conversation that is under way continues before a
        new one starts."""
        return self.input.task.priority - bool(self.completions)


@dataclass(slots=True, eq=False)
class PoolEngine:
    """An engine of the pool and its rows. Only ``revive`` has a thread of its own."""

    engine: RequestEngine
    name: str = "the engine"  # for people
    where: Callable[[], str] = str  # it runs, for people
    adapter: str | None = None  # answers rows that name none
    beginning: Beginning | None = None
    state: EngineState = EngineState.READY
    problem: IngotError | None = None  # why it is lost
    counts: RowCounts = field(default_factory=RowCounts)
    rows: dict[str, InFlightRow] = field(default_factory=dict)  # in the order they were started in
    reserved: bool = False  # for suspects: it gets no other rows
    failures_in_a_row: int = 0
    deaths_in_a_row: int = 0  # of its process, without an answer between them
    most_slots: int = field(init=False)

    def __post_init__(self) -> None:
        # A worker that is started anew may have fewer slots.
        self.most_slots = self.engine.slots

    @property
    def ready(self) -> bool:
        """Whether it may be given rows. Between the death of its process and the news of what was
        lost with it, it may not: those rows would wait for the next process."""
        return self.state is EngineState.READY and self.engine.pid is not None

    def by_slot(self) -> list[InFlightRow]:
        """Rows in the order in which slots are given."""
        return sorted(self.rows.values(), key=lambda row: row.rank)

    @property
    def running(self) -> list[InFlightRow]:
        """Rows that have a slot."""
        return self.by_slot()[: self.engine.slots]

    def usable(self) -> IngotError | None:
        """Ask the engine something; what is wrong with it, or None. Waits while it restarts."""
        try:
            self.engine.encode(".")
        except IngotError as error:
            return error
        return None

    def lose(self, problem: IngotError) -> None:
        """Use the engine no more in this job."""
        _log.warning("%s is left out from now on: %s", self.name, problem)
        self.problem, self.state = problem, EngineState.LOST

    def revive(self, trial: SamplingParams, wake: Callable[[], None]) -> None:
        """Have the engine start its process again and answer a single token, by ``trial``, on
        another thread; ``wake`` is called at the end. Other engines go on meanwhile. An engine
        whose process cannot even do that is lost: no row is to blame for its deaths."""
        self.state = EngineState.AWAY

        def check() -> None:
            problem: IngotError | None
            try:
                problem = self._tried(trial)
            except Exception as error:
                _log.exception("%s cannot be used", self.name)
                problem = IngotError(f"{self.name} cannot be used: {error}")
            if problem is None:
                self.state = EngineState.READY
            else:
                self.lose(problem)
            wake()

        threading.Thread(target=check, name="ingot-revive", daemon=True).start()

    def _tried(self, trial: SamplingParams) -> IngotError | None:
        """Try a process that was started anew; return its problem, or None."""
        problem: IngotError | None = None
        for _ in range(_TRIALS):
            try:
                ids = self.engine.encode(".")
                only_embeds = self.engine.model.encodes
                request = Request(ids, trial, Priority.CRITICAL, embed=only_embeds)
                done = self.engine.submit(request).result()
            except RequestError as error:  # the engine is closed
                return error
            except IngotError as error:
                problem = error
                continue
            if done.finish_reason not in (FinishReason.ERROR, FinishReason.CANCELLED):
                return None
            said = done.error or "it was closed"
            problem = ModelError(f"{self.name} cannot even answer one token any more: {said}")
        return problem

    def cancel(self) -> list[InFlightRow]:
        """Give up all of its rows; which these were."""
        for request_id in self.rows:
            self.engine.cancel(request_id)
        given_up, self.rows = list(self.rows.values()), {}
        return given_up
