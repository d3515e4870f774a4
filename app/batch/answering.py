"""From a loaded model to answered rows: the part of a job that both kinds of output share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from app.batch.interrupt import Interrupts
from app.batch.job import Job
from app.batch.lane import Lane
from app.batch.logprobs import TokenTexts
from app.batch.plan import Plan as Plan
from app.batch.progress import Progress, Snapshot
from app.batch.slots import slots_for
from app.batch.survey import Survey
from app.batch.work import Counts, Deliver, Terms, Work
from app.models import load_engine
from app.prompts import PromptStyle
from runtimes.api import EngineApi
from runtimes.metrics import EngineStats

Ended = Literal["signal", "time"]

# Figures are asked of the worker process, and the sizes of processes of the system.
_SNAPSHOT_SECONDS, _MEMORY_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the engine did. ``ended`` says why it did not come to the end, or is None;
    ``memory`` is the most bytes that its processes had."""

    ended: Ended | None
    counts: Counts
    stats: EngineStats
    slots: int
    load_s: float
    run_s: float
    memory: int


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the input before the model runs; ``skipped`` rows stay failed."""

    found: Survey
    skipped: int = 0


def answer(
    plan: Plan,
    known: Known,
    work: Iterator[Work],
    deliver: Deliver,
    progress: Progress,
    *,
    loaded: Callable[[], None],
    idle: Callable[[], None],
) -> Run:
    """Load the model and answer ``work``. ``loaded`` is called once the model is there, ``idle`` a
    few times a second."""
    choice, limits = plan.choice, plan.limits
    slots = slots_for(choice, known.found.pending, fixed=plan.fixed_slots)
    settings = replace(choice.settings, slots=slots)
    begun = time.monotonic()
    interrupts = Interrupts(limits.max_time_s)
    # Nobody waits for a single row: prompts go in as fast as they can.
    engine = load_engine(choice.file, settings, replace(choice.scheduling, max_stall_s=None))
    # Signals are counted until the engine is closed: one that comes then must not end it all.
    with interrupts, engine, TokenTexts(choice.file.path) as texts:
        ready = time.monotonic()
        loaded()
        style = PromptStyle(plan.settings.system, plan.settings.raw)
        terms = Terms(plan.settings.sampling, style, limits.row_timeout_s, limits.retries)
        job = Job([Lane(engine)], terms, deliver, texts)
        view = _View(engine, known, job.counts, interrupts, progress, ready)

        def tick() -> None:
            idle()
            view.update()

        with progress:
            finished = job.run(work, interrupts, tick)
        ended: Ended | None = None
        if not finished:
            ended = "signal" if interrupts.count else "time"
        return Run(
            ended=ended,
            counts=job.counts,
            stats=engine.stats(),
            slots=engine.slots,
            load_s=ready - begun,
            run_s=time.monotonic() - ready,
            memory=view.most_memory,
        )


class _View:
    """Takes snapshots of a job for its progress, no more often than is worth while."""

    def __init__(
        self,
        engine: EngineApi,
        known: Known,
        counts: Counts,
        interrupts: Interrupts,
        progress: Progress,
        ready: float,
    ) -> None:
        self._engine, self._known, self._counts = engine, known, counts
        self._interrupts, self._progress, self._ready = interrupts, progress, ready
        self._taken = self._weighed = float("-inf")
        self._told = False
        self._memory = self.most_memory = 0

    def update(self) -> None:
        """Take a snapshot if the last one is old enough."""
        now = time.monotonic()
        if self._interrupts.draining and not self._told:
            self._told = True
            self._progress.note(
                "finishing the rows in work; once more stops at once"
                if self._interrupts.count
                else "the time is over (--max-time): finishing the rows in work"
            )
        if now - self._taken < _SNAPSHOT_SECONDS:
            return
        self._taken = now
        if now - self._weighed >= _MEMORY_SECONDS:
            self._weighed, self._memory = now, _memory()
            self.most_memory = max(self.most_memory, self._memory)
        self._progress.update(self._snapshot(now))

    def _snapshot(self, now: float) -> Snapshot:
        stats, counts, found = self._engine.stats(), self._counts, self._known.found
        computed = counts.answered + counts.failed
        return Snapshot(
            rows=found.rows,
            done=found.invalid + found.reusable + computed,
            cached=found.reusable - self._known.skipped,
            computed=computed,
            failed=found.invalid + self._known.skipped + counts.failed,
            running=stats.running,
            slots=stats.slots,
            elapsed_s=now - self._ready,
            prefill_now=stats.prefill_tps_now,
            decode_now=stats.decode_tps_now,
            prefill=stats.prefill_tps,
            decode=stats.decode_tps,
            kv_tokens=stats.kv_tokens,
            kv_capacity=stats.kv_capacity,
            memory=self._memory,
            draining=self._interrupts.draining,
            working=counts.working,
        )


def _memory() -> int:
    """Resident bytes of this process and those that it started."""
    import psutil

    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has ended
            continue
    return total
