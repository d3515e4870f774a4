"""From a loaded model to answered rows: the part of a job that both kinds of output share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from app.batch.interrupt import Interrupts
from app.batch.job import Counts, Deliver, Job, Work
from app.batch.progress import Progress, Snapshot
from app.batch.settings import JobSettings
from app.batch.slots import default_slots, free_memory
from app.batch.source import Source
from app.batch.survey import Survey
from app.models import load_engine
from app.planning import Choice
from app.prompts import PromptStyle
from runtimes.api import EngineApi


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for. ``fixed_slots`` says that the number of slots was given, not
    planned; ``force`` accepts changed settings, ``fresh`` drops old answers."""

    source: Source
    choice: Choice
    settings: JobSettings
    fixed_slots: bool = False
    force: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the engine did. ``finished`` is False after an interruption."""

    finished: bool
    counts: Counts
    slots: int
    load_s: float
    run_s: float
    prefill_tps: float
    decode_tps: float


def answer(
    plan: Plan,
    found: Survey,
    work: Iterator[Work],
    deliver: Deliver,
    progress: Progress,
    *,
    loaded: Callable[[], None],
    idle: Callable[[], None],
) -> Run:
    """Load the model and answer ``work``. ``loaded`` is called once the model is there, ``idle`` a
    few times a second."""
    choice = plan.choice
    settings = replace(choice.settings, slots=_slots(plan, found.pending))
    begun = time.monotonic()
    # Nobody waits for a single row: prompts go in as fast as they can.
    engine = load_engine(choice.file, settings, replace(choice.scheduling, max_stall_s=None))
    # Signals are counted until the engine is closed: one that comes then must not end it all.
    with Interrupts() as interrupts, engine:
        ready = time.monotonic()
        loaded()
        style = PromptStyle(plan.settings.system, plan.settings.raw)
        job = Job(engine, plan.settings.sampling, style, deliver)
        told = False

        def tick() -> None:
            nonlocal told
            idle()
            progress.update(_snapshot(engine, found, job.counts, interrupts.draining))
            if interrupts.draining and not told:
                told = True
                progress.note("finishing the rows in work; once more stops at once")

        with progress:
            finished = job.run(work, interrupts, tick)
        stats = engine.stats()
        return Run(
            finished=finished,
            counts=job.counts,
            slots=engine.slots,
            load_s=ready - begun,
            run_s=time.monotonic() - ready,
            prefill_tps=stats.prefill_tps,
            decode_tps=stats.decode_tps,
        )


def _slots(plan: Plan, rows: int) -> int:
    """As many as were asked for; else as many as planned, or as fit, but no more than rows."""
    settings = plan.choice.settings
    if plan.fixed_slots:
        return settings.slots
    if plan.choice.planned:
        return max(1, min(settings.slots, rows))
    return default_slots(plan.choice.file, settings.context, rows, free_memory())


def _snapshot(engine: EngineApi, found: Survey, counts: Counts, draining: bool) -> Snapshot:
    stats = engine.stats()
    computed = counts.answered + counts.failed
    return Snapshot(
        rows=found.rows,
        done=found.invalid + found.reusable + computed,
        computed=computed,
        failed=found.invalid + counts.failed,
        running=stats.running,
        prefill_now=stats.prefill_tps_now,
        decode_now=stats.decode_tps_now,
        prefill=stats.prefill_tps,
        decode=stats.decode_tps,
        draining=draining,
    )
