"""From a plan to answered rows: the part of a job that both kinds of output share."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace

from app.batch.input.scan import InputScan
from app.batch.input.source import Row
from app.batch.interrupt import Interrupts
from app.batch.report.answer_lengths import LengthCounts
from app.batch.report.eta import Forecast, Left
from app.batch.report.figures import PERIOD_S, Snapshot, energy_of, figures_of
from app.batch.report.progress import Progress
from app.batch.report.summary import Summary
from app.batch.schedule.engines import JobPlan, local_engines
from app.batch.schedule.job import Deliver, Job, RequestDefaults
from app.batch.schedule.pool_engine import PoolEngine
from app.prompts import PromptStyle
from runtimes.machine.gpus import GpuWatch

# Figures are asked of the worker process, and the sizes of processes of the system.
_SNAPSHOT_SECONDS, _MEMORY_SECONDS, _FORECAST_SECONDS = 0.2, 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Hosted:
    """A job within a process that does other things too: on engines which that has loaded, told by
    it, instead of by signals, when to end. It makes the output, too."""

    members: list[PoolEngine]
    interrupts: Interrupts


def run_engines(
    plan: JobPlan,
    found: InputScan,
    rows: Iterator[Row],
    deliver: Deliver,
    progress: Progress,
    summary: Summary,
    *,
    loaded: Callable[[], None] = lambda: None,
    idle: Callable[[], None] = lambda: None,
    lengths: LengthCounts | None = None,
    hosted: Hosted | None = None,
) -> Summary:
    """Load the model, unless ``hosted``, and answer ``rows``; return ``summary`` with what was
    done. ``loaded`` is called once the model is there, ``idle`` a few times a second; ``lengths``
    are those of the answers of earlier runs."""
    running = plan.spec.running
    begun = time.monotonic()
    pool = ExitStack()
    signals: AbstractContextManager[None] = nullcontext()
    if hosted is not None:
        interrupts, members = hosted.interrupts, hosted.members
    else:
        interrupts = Interrupts(running.max_time)
        signals = interrupts.signals()
        with progress.doing(f"loading {plan.choice.file.path.name}"):
            members = pool.enter_context(_engine_pool(plan, found.pending))
    # Signals are counted until the engines are closed: one that comes then must not end it all.
    with signals, pool:
        ready = time.monotonic()
        loaded()
        style = PromptStyle(plan.settings.system, plan.settings.raw)
        defaults = RequestDefaults(
            plan.settings.sampling, style, running.row_timeout, running.retries
        )
        job = Job(members, defaults, deliver)
        if lengths is not None:
            job.counts.lengths = lengths
        view = _View(job, found, interrupts, progress, ready)

        def tick() -> None:
            idle()
            view.update()

        with progress, GpuWatch(PERIOD_S) as watch:
            finished = job.run(rows, interrupts, tick)
        if not interrupts.stopping:
            for member in members:
                if member.beginning is not None:
                    member.beginning.keep()
        stats, engines = figures_of(members)
        counts = job.counts
        # Of an engine that others use too, or elsewhere, it would not be the job's.
        own = hosted is None and running.ray is None and stats.gpu_layers
        return replace(
            summary,
            answered=summary.answered + counts.answered,
            failed=summary.failed + counts.failed,
            unfinished=summary.unfinished - counts.answered - counts.failed,
            errors=dict(counts.errors),
            retried=counts.retried,
            crashes=counts.crashes,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            completion_tokens=counts.completion_tokens,
            slots=sum(member.engine.slots for member in members),
            load_s=ready - begun,
            run_s=time.monotonic() - ready,
            prefill_tps=stats.prefill_tps,
            decode_tps=stats.decode_tps,
            memory_bytes=view.most_memory,
            ended=None if finished else "signal" if interrupts.count else "time",
            engines=engines,
            energy=energy_of(watch, counts.completion_tokens) if own else None,
            stats=stats,
        )


def _engine_pool(plan: JobPlan, rows: int) -> AbstractContextManager[list[PoolEngine]]:
    if plan.spec.running.ray is None:
        return local_engines(plan, rows)
    from app.batch.schedule.cluster import cluster_engines

    return cluster_engines(plan, rows)


class _View:
    """Takes snapshots of a job for its progress, no more often than is worth while."""

    def __init__(
        self,
        job: Job,
        found: InputScan,
        interrupts: Interrupts,
        progress: Progress,
        ready: float,
    ) -> None:
        self._found, self._job = found, job
        self._interrupts, self._progress, self._ready = interrupts, progress, ready
        self._forecast = Forecast(found.pending, found.characters, ready)
        self._left: Left | None = None
        self._foreseen = ready
        self._taken = self._weighed = float("-inf")
        self._told = False
        self._memory = self.most_memory = 0

    def update(self) -> None:
        """Take a snapshot if the last one is old enough."""
        now, draining = time.monotonic(), self._interrupts.draining
        if draining and not self._told:
            self._told = True
            self._progress.note(
                "finishing the running rows; once more stops at once"
                if self._interrupts.count
                else "the time is over (--max-time): finishing the running rows"
            )
        if now - self._taken < _SNAPSHOT_SECONDS:
            return
        self._taken = now
        if now - self._weighed >= _MEMORY_SECONDS:
            self._weighed, self._memory = now, _memory()
            self.most_memory = max(self.most_memory, self._memory)
        members, counts, found = self._job.members, self._job.counts, self._found
        stats, engines = figures_of(members)
        if now - self._foreseen >= _FORECAST_SECONDS:
            self._foreseen = now
            self._left = self._forecast.left(
                now, stats, members, counts, self._job.begun, draining=draining
            )
        self._progress.update(
            Snapshot(
                rows=found.rows,
                done=found.invalid + found.reusable + counts.answered + counts.failed,
                cached=found.cached,
                failed=found.failed + counts.failed,
                running=stats.running,
                reading=stats.prefilling,
                slots=stats.slots,
                elapsed_s=now - self._ready,
                left=self._left,
                prefill_tps_now=stats.prefill_tps_now,
                prefill_tps=stats.prefill_tps,
                decode_tps_now=stats.decode_tps_now,
                decode_tps=stats.decode_tps,
                kv_tokens=stats.kv_tokens,
                kv_capacity=stats.kv_capacity,
                memory_bytes=self._memory,
                draining=draining,
                working=counts.working,
                engines=engines,
                compiling=stats.compiling > 0 and not stats.running,
            )
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
