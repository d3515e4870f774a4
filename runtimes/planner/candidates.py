"""Candidates of a plan (files, cache layouts, threads, types of keys and values, offload), and the
choice among those that were measured: pure functions of figures and sizes."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from runtimes.models.memory import DEFAULT_CONTEXT, estimate, gib, largest_slots
from runtimes.models.modelfile import ModelFile, RuntimeName
from runtimes.models.registry import backend_of
from runtimes.planner.plan import (
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    TRIAL_TOKENS,
    Alternative,
    Figures,
    PlanWorkload,
    Profile,
)
from runtimes.settings import FlashAttention, KvType, Rope, RunnerSettings

ROWS = (4, 8, 16, 32)  # numbers of slots that a batch may get
_FEW = 4
# Settings that candidates differ in, as they are for a runtime that does not have them.
_PLAIN = {"unified_kv": False, "kv_type": "f16", "gpu_layers": 0, "device_sampling": False}
_SHARE = 0.75  # of the free memory; the prefix cache and the rest of the machine need some


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings of RunnerSettings that the user has fixed; None leaves it to the planner."""

    slots: int | None = None
    context: int | None = None
    threads: int | None = None
    batch: int | None = None
    kv_type: KvType | None = None
    unified_kv: bool | None = None
    gpu_layers: int | None = None
    device: str | None = None
    kv_tokens: int | None = None
    device_sampling: bool | None = None
    flash_attention: FlashAttention | None = None
    rope: Rope | None = None


@dataclass(frozen=True, slots=True)
class PlanTask:
    """Workload and machine of a plan."""

    workload: PlanWorkload
    profile: Profile
    cores: int  # that may be used
    free: int  # bytes of memory
    gpus: frozenset[RuntimeName] = frozenset()  # the runtimes that have one
    overrides: Overrides = Overrides()
    depth: int = 0  # tokens that stand in a row's KV cache before its prompt goes in

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows together that are worth a measurement, the fewest first."""
        if self.overrides.slots:
            return (self.overrides.slots,)
        if self.workload == "chat":
            return (1,)
        return (_FEW,) if self.profile in ("memory", "latency") else ROWS

    @property
    def base_rows(self) -> int:
        """The number of rows at which candidates are compared first."""
        if self.profile == "latency":
            return 1
        return min(self.row_counts, key=lambda rows: abs(rows - 16))

    @property
    def usable(self) -> int:
        """Bytes of memory that a plan may take."""
        return int(self.free * _SHARE)

    def context(self, model: ModelFile) -> int:
        """Tokens of a slot."""
        return min(self.overrides.context or DEFAULT_CONTEXT, model.context_length)

    def most_depth(self, models: Iterable[ModelFile]) -> int:
        """Tokens that every model's context leaves beside those that a trial computes."""
        return max(0, min(map(self.context, models)) - TRIAL_TOKENS)

    def within(self, models: Iterable[ModelFile]) -> Self:
        """The task at a depth that every model's context has: all are compared at the same one."""
        return replace(self, depth=min(self.depth, self.most_depth(models)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file with the settings that change its speed."""

    model: ModelFile
    settings: RunnerSettings  # slots, context and batch are chosen later

    def sized(self, task: PlanTask, slots: int, batch: int | None = None) -> RunnerSettings:
        """The settings with this many slots, and ``batch`` tokens a step if it is known."""
        fixed = task.overrides
        return replace(
            self.settings,
            slots=slots,
            context=task.context(self.model),
            batch=batch or fixed.batch or self.settings.batch,
            kv_tokens=fixed.kv_tokens,
            flash_attention=fixed.flash_attention or "auto",
            rope=fixed.rope,
        )

    def on_gpu(self, task: PlanTask) -> bool:
        """Whether it computes on one, in part or whole."""
        model = self.model
        return model.runtime in task.gpus and backend_of(model).allows_gpu(self.settings)

    def memory(self, task: PlanTask, slots: int, batch: int | None = None) -> int:
        """Bytes that it needs, all in all."""
        return estimate(self.model, self.sized(task, slots, batch)).total

    def slots_that_fit(self, task: PlanTask, most: int) -> int:
        """At most ``most``; 0 when not even one fits. A GPU's memory is not counted."""
        if self.on_gpu(task):
            return most
        return largest_slots(self.model, self.sized(task, 1), task.usable, most)

    def describe(self, figures: Figures | None = None, failure: str | None = None) -> Alternative:
        """This candidate with what was found of it."""
        model = self.model
        return Alternative(model.path.name, model.runtime, self.settings, figures, failure)


def candidates(models: Iterable[ModelFile], task: PlanTask) -> list[Candidate]:
    """Every file with every layout, on all cores. What was fixed is fixed in all of them."""
    device = task.overrides.device or "auto"
    found = []
    for model in models:
        knows = backend_of(model).knows
        both = device == "auto" and model.runtime in task.gpus
        # A device that is named is used; the processor alone has no layers elsewhere.
        layers = (-1, 0) if both else (0,) if device in ("auto", "cpu") else (-1,)
        packed = task.profile == "memory" and model.packs_kv and model.kv_type == "f16"
        tried: dict[str, tuple[Any, ...]] = {
            # With one row the two layouts are the same thing.
            "unified_kv": (False, True) if task.row_counts[-1] > 1 else (False,),
            # What the file was made for, else half the bytes where memory counts most.
            "kv_type": ("q8_0" if packed else model.kv_type,),
            "gpu_layers": layers,
            "device_sampling": (False,),
        }
        for name, plain in _PLAIN.items():
            fixed = getattr(task.overrides, name) if name in knows else plain
            if fixed is not None:
                tried[name] = (fixed,)
        # Where no layers are counted, the whole model is here or there.
        tried["device"] = (device, "cpu") if both and "gpu_layers" not in knows else (device,)
        for values in itertools.product(*tried.values()):
            settings = RunnerSettings(
                threads=task.overrides.threads or task.cores,
                **dict(zip(tried, values, strict=True)),
            )
            found.append(Candidate(model, settings))
    return found


def variants(candidate: Candidate, task: PlanTask) -> list[Candidate]:
    """Other ways to run a candidate, where nothing is fixed: with fewer threads, where there are
    more than two cores to choose among; with the likeliest tokens found on the GPU, where the model
    runs on one.

    One core less leaves room for the rest of the machine; half of them is what memory bandwidth
    feeds on many processors.
    """
    fixed, changes = task.overrides, list[dict[str, Any]]()
    if not fixed.threads and task.cores > 2:
        fewer = sorted({task.cores - 1, task.cores // 2}, reverse=True)
        changes += [{"threads": threads} for threads in fewer]
    knows = backend_of(candidate.model).knows
    if fixed.device_sampling is None and "device_sampling" in knows and candidate.on_gpu(task):
        changes.append({"device_sampling": True})
    return [replace(candidate, settings=replace(candidate.settings, **one)) for one in changes]


def split_by_memory(
    found: Sequence[Candidate], task: PlanTask
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Split candidates: those that fit with the fewest slots that would do, and the others with
    what they need."""
    least = task.overrides.slots or 1
    fit, refused = [], []
    for candidate in found:
        if candidate.slots_that_fit(task, least) == least:
            fit.append(candidate)
        else:
            need = candidate.memory(task, least)
            refused.append((candidate, f"needs {gib(need)}; {gib(task.usable)} may be used"))
    return fit, refused


_GAIN = 1.02  # what twice the slots must bring to be worth their memory
_CLOSE = 1.4  # how far behind one short sample may be and still be looked at again
_FINALISTS = 3
_HALF_SPEED = 0.5  # how slow the smallest may be under the profile `memory`
BUSY = 0.2  # samples that scatter more than this say that something else was running


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate, and what was measured of it."""

    candidate: Candidate
    figures: Figures
    most_slots: int  # that memory allows


def score(figures: Figures, task: PlanTask, rows: Iterable[int] | None = None) -> float:
    """Higher is better: turns a second of one row, or the job's tokens a second at the best of
    ``rows`` (None: of all that were measured)."""
    if task.workload == "chat" or task.profile == "latency":
        return 1 / figures.turn_s(task.workload)
    return max(figures.job_tps(n) for n in rows or figures.decode_tps)


def speeds(measured: Sequence[Measured], task: PlanTask) -> list[float]:
    """Each one's score, at numbers of rows that all of them were measured with."""
    common = frozenset.intersection(*(frozenset(m.figures.decode_tps) for m in measured))
    return [score(m.figures, task, common) for m in measured]


def _ranked(measured: Sequence[Measured], task: PlanTask) -> list[tuple[float, Measured]]:
    """Each one with its speed, the fastest first."""
    pairs = zip(speeds(measured, task), measured, strict=True)
    return sorted(pairs, key=lambda pair: -pair[0])


def best_of(measured: Sequence[Measured], task: PlanTask) -> Measured:
    """The one that the profile asks for. ``measured`` must not be empty."""
    ranked = _ranked(measured, task)
    if task.profile != "memory":
        return ranked[0][1]
    enough = _HALF_SPEED * ranked[0][0]
    good = [one for speed, one in ranked if speed >= enough]
    return min(good, key=lambda one: one.candidate.memory(task, slots_for(one, task)))


def slots_for(one: Measured, task: PlanTask) -> int:
    """How many slots the chosen candidate gets, never more than memory allows."""
    if len(task.row_counts) == 1:
        return min(*task.row_counts, one.most_slots)
    rows = [n for n in one.figures.decode_tps if n <= one.most_slots]
    if not rows:
        return one.most_slots
    if task.profile == "throughput":
        return max(rows, key=one.figures.job_tps)
    chosen = rows[0]
    for more in rows[1:]:
        if one.figures.job_tps(more) >= _GAIN * one.figures.job_tps(chosen):
            chosen = more
    return chosen


def finalists(measured: Sequence[Measured], task: PlanTask) -> list[Measured]:
    """List the candidates worth a longer look: the best, and what one short sample may have
    wronged."""
    if task.profile == "memory":
        return [best_of(measured, task)]
    ranked = _ranked(measured, task)
    return [one for speed, one in ranked[:_FINALISTS] if speed >= ranked[0][0] / _CLOSE]


def reasons(
    chosen: Measured,
    others: Sequence[Measured],
    task: PlanTask,
    slots: int,
    beside: Measured | None = None,
) -> Iterator[str]:
    """Why, in sentences with figures.

    ``beside`` is the chosen one as it was measured in the same round as ``others``, where that was
    not the round of its own figures: figures of two rounds are not to be compared.
    """
    yield _speed_line(chosen, beside or chosen, others, task)
    if task.workload == "batch" and not task.overrides.slots:
        yield _slots_line(chosen, task, slots)
    if task.profile == "memory":
        yield "the smallest of those with at least half of the best speed"
    settings, cores = chosen.candidate.settings, task.cores
    threads = settings.threads or cores
    if task.overrides.threads:
        pass  # as was asked
    elif threads == cores:
        yield f"{threads} thread{'s' if threads > 1 else ''}: one a core that may be used"
    else:
        yield f"{threads} threads were faster than one on each of {cores} cores"
    if "kv_type" in backend_of(chosen.candidate.model).knows and not task.overrides.kv_type:
        if settings.kv_type == "f16":
            yield (
                "keys and values f16: smaller types change answers and are used only with --kv-type"
            )
        else:
            yield f"keys and values {settings.kv_type}, about half of what f16 takes"
    if chosen.figures.scatter > BUSY:
        yield (
            f"samples scattered by {chosen.figures.scatter:.0%}: the machine was busy; "
            "`--again` on a quiet one is surer"
        )


def _speed_line(
    chosen: Measured, beside: Measured, others: Sequence[Measured], task: PlanTask
) -> str:
    speed = _speed(score(chosen.figures, task), task)
    rest = [m for m in others if m.candidate != chosen.candidate]
    if not rest:
        return f"{speed}; nothing else could be compared"
    pairs = [(speeds([beside, other], task), other) for other in rest]
    (own, its), second = min(pairs, key=lambda pair: pair[0][0] / pair[0][1])
    other = second.candidate.describe()
    threads = other.settings.threads or 0
    layout = " with one shared cache" if other.settings.unified_kv else ""
    return (
        f"{speed}; {own / its:.2f} times as fast as {other.file}{layout} on {threads} "
        f"thread{'s' if threads > 1 else ''}, the {'next' if own >= its else 'very'} best"
    )


def _speed(value: float, task: PlanTask) -> str:
    prompt = PROMPT_TOKENS[task.workload]
    behind = f" behind {task.depth:,}" if task.depth else ""
    if task.workload == "chat" or task.profile == "latency":
        return f"{1 / value:.2f} s for {prompt} prompt tokens and {OUTPUT_TOKENS} of answer{behind}"
    return f"{value:,.0f} tok/s, {prompt} prompt tokens and {OUTPUT_TOKENS} of answer a row{behind}"


def _slots_line(chosen: Measured, task: PlanTask, slots: int) -> str:
    tried = ", ".join(
        f"{chosen.figures.job_tps(rows):,.0f} tok/s with {rows}"
        for rows in chosen.figures.decode_tps
    )
    limit = (
        f"; memory allows {chosen.most_slots}" if chosen.most_slots < max(task.row_counts) else ""
    )
    return f"{slots} slots: rows that run together do {tried}{limit}"


def spread(values: Sequence[float]) -> float:
    """Return the spread of samples, as a part of their median."""
    return (max(values) - min(values)) / statistics.median(values)
