"""From a plan to answered rows: loads the engines, runs the ``Job``, measures it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from statistics import fmean

from app.batch.input.scan import InputScan
from app.batch.input.source import Row
from app.batch.interrupt import Interrupts
from app.batch.report.eta import Forecast, Left, LengthCounts
from app.batch.report.figures import Energy, EngineFigures, JobFigures, alike
from app.batch.report.progress import Progress
from app.batch.schedule.engines import VISIBLE, JobPlan, local_engines
from app.batch.schedule.job import Deliver, Job, RequestDefaults
from app.batch.schedule.pool_engine import PoolEngine
from app.models.advice import job_advice
from app.prompts import PromptStyle
from runtimes.engine.metrics import EngineStats, Percentiles, ratio
from runtimes.errors import ModelError
from runtimes.machine.gpus import GpuWatch, tokens_per_joule
from runtimes.untrusted import JsonObject

# Figures are asked of the worker process, and the sizes of processes of the system.
_FIGURES_S, _MEMORY_S, _FORECAST_S = 0.2, 2.0, 1.0
_PERIOD_S = 1.0  # between two readings of the GPUs' power


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
    before: JobFigures,
    *,
    loaded: Callable[[], None] = lambda: None,
    idle: Callable[[], None] = lambda: None,
    lengths: LengthCounts | None = None,
    hosted: Hosted | None = None,
) -> JobFigures:
    """Load the model, unless ``hosted``, and answer ``rows``; return the figures of the run, whose
    figures ``before`` its first row are given. ``loaded`` is called once the model is there,
    ``idle`` a few times a second; ``lengths`` are those of the answers of earlier runs."""
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
        forecast = Forecast(found.pending, found.characters, ready)
        meter = _Meter(job, before, interrupts, progress, ready, forecast, foreseen=ready)

        def tick() -> None:
            idle()
            meter.update()

        with progress, GpuWatch(_PERIOD_S) as watch:
            finished = job.run(rows, interrupts, tick)
        if not interrupts.stopping:
            for member in members:
                if member.beginning is not None:
                    member.beginning.keep()
        figures = meter.figures(time.monotonic())
        assert figures.stats is not None
        # Of an engine that others use too, or elsewhere, it would not be the job's.
        own = hosted is None and running.ray is None
        advice = None
        if own and finished and len(members) == 1:
            settings = replace(plan.choice.settings, slots=members[0].engine.slots)
            with suppress(ModelError):  # the file is gone meanwhile: the answers are there
                advice = job_advice(plan.choice, settings, figures.stats, found.pending)
        return replace(
            figures,
            slots=sum(member.engine.slots for member in members),
            load_s=ready - begun,
            memory_bytes=meter.most_memory,
            ended=None if finished else "signal" if interrupts.count else "time",
            energy=energy_of(watch, job.counts.completion_tokens)
            if own and figures.stats.gpu_layers
            else None,
            advice=advice,
        )


def _engine_pool(plan: JobPlan, rows: int) -> AbstractContextManager[list[PoolEngine]]:
    if plan.spec.running.ray is None:
        return local_engines(plan, rows)
    from app.batch.schedule.cluster import cluster_engines

    return cluster_engines(plan, rows)


@dataclass(slots=True)
class _Meter:
    """Measures a running job for its progress, no more often than is worth while."""

    job: Job
    before: JobFigures
    interrupts: Interrupts
    progress: Progress
    ready: float
    forecast: Forecast
    foreseen: float  # when it was made last
    left: Left | None = None
    told: bool = False  # that it ends
    memory: int = 0
    most_memory: int = 0
    taken: float = 0.0  # moments of the last figures
    weighed: float = 0.0  # and of the last look at the memory

    def update(self) -> None:
        """Show new figures if the last ones are old enough."""
        now = time.monotonic()
        if self.interrupts.draining and not self.told:
            self.told = True
            self.progress.note(
                "finishing the running rows; once more stops at once"
                if self.interrupts.count
                else "the time is over (--max-time): finishing the running rows"
            )
        if now - self.taken < _FIGURES_S:
            return
        self.taken = now
        if now - self.weighed >= _MEMORY_S:
            self.weighed, self.memory = now, _memory()
            self.most_memory = max(self.most_memory, self.memory)
        self.progress.update(self.figures(now))

    def figures(self, now: float) -> JobFigures:
        """Figures of the job so far."""
        members, counts, before = self.job.members, self.job.counts, self.before
        running = [member.running for member in members]
        working = [row for rows in running for row in rows]
        each = [member.engine.stats() for member in members]
        stats = each[0] if len(each) == 1 else together(each)
        draining = self.interrupts.draining
        if now - self.foreseen >= _FORECAST_S:
            self.foreseen = now
            progress = [row.progress() for row in working]
            self.left = self.forecast.left(
                now, stats, progress, counts, self.job.begun, draining=draining
            )
        values = alike(JobFigures, stats, counts) | {
            "answered": before.answered + counts.answered,
            "failed": before.failed + counts.failed,
            "errors": dict(counts.errors),
            "reading": stats.prefilling,
            "working": tuple(row.input.index for row in working),
            "draining": draining,
            "compiling": stats.compiling > 0 and not stats.running,
            "elapsed_s": now - self.ready,
            "time_left": self.left,
            "memory_bytes": self.memory,
            "engines": tuple(map(_figures, members, each, map(len, running))) if each[1:] else (),
            "stats": stats,
        }
        return replace(before, **values)


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


def _figures(member: PoolEngine, stats: EngineStats, running: int) -> EngineFigures:
    counts = member.counts
    values = alike(EngineFigures, stats, counts) | {
        "name": member.name,
        "where": member.where(),
        "state": member.state.value,
        "running": running,
        "rows": counts.answered + counts.failed,
    }
    return EngineFigures(**values)


def together(stats: Sequence[EngineStats]) -> EngineStats:
    """Figures of engines that run side by side: counts, and rates too, add up.

    ``prefill_s`` and ``decode_s`` are what makes the rates since the start the sum of the engines'
    own. Percentiles cannot be known from the engines'; they are left out.
    """
    values: JsonObject = {}
    for field in fields(EngineStats):
        each = [getattr(one, field.name) for one in stats]
        values[field.name] = (
            Percentiles() if isinstance(each[0], Percentiles) else sum(filter(None, each))
        )
    steps = [one.steps for one in stats]
    begun = [one.prompt_tokens + one.cached_tokens for one in stats]
    values |= {
        "context": min(one.context for one in stats),
        "prefill_s": ratio(values["prompt_tokens"], sum(one.prefill_tps for one in stats)),
        "decode_s": ratio(values["decode_tokens"], sum(one.decode_tps for one in stats)),
        "host_us_per_step": _mean([one.host_us_per_step for one in stats], steps),
        "prefix_hit_rate": _mean([one.prefix_hit_rate for one in stats], begun),
    }
    if any(one.graphs_reused is None for one in stats):
        values["graphs_reused"] = None
    return EngineStats(**values)


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return fmean(values, weights) if any(weights) else 0.0


def energy_of(watch: GpuWatch, tokens: int) -> Energy | None:
    """Return the energy of ``tokens`` of answers; None unless every GPU told its power to the
    end."""
    visible = os.environ.get(VISIBLE, "").replace(" ", "").split(",")
    named = [name for name in visible if name.isdecimal()]
    uses = [use for index, use in watch.uses.items() if not named or str(index) in named]
    joules = sum(use.joules for use in uses)
    if watch.reader.missing or not joules or any(use.watts is None for use in uses):
        return None
    return Energy(
        joules=joules,
        watts=sum(use.watts or 0.0 for use in uses),
        tokens_per_joule=tokens_per_joule(tokens, joules) or None,
        gpus=tuple(use.name for use in uses),
        measured=f"the power that NVIDIA's driver told of {len(uses)} GPU{'s' * (len(uses) > 1)}"
        f" every {_PERIOD_S:g} s, with idle power and other programs'",
    )
