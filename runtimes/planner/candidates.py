"""Candidates of a plan: files, cache layouts, threads, types of keys and values, offload."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from runtimes.models.memory import DEFAULT_CONTEXT, estimate, gib, largest_slots
from runtimes.models.modelfile import ModelFile, RuntimeName
from runtimes.models.registry import backend_of
from runtimes.planner.plan import TRIAL_TOKENS, Alternative, PlanWorkload, Profile
from runtimes.settings import FlashAttention, KvType, Rope, RunnerSettings

ROWS = (4, 8, 16, 32)  # numbers of slots that a batch may get
_FEW = 4
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

    def describe(self) -> Alternative:
        """This candidate without figures."""
        return Alternative(self.model.path.name, self.model.runtime, self.settings)


def candidates(models: Iterable[ModelFile], task: PlanTask) -> list[Candidate]:
    """Every file with every layout, on all cores. What was fixed is fixed in all of them."""
    # With one row the two layouts are the same thing.
    layouts = (False, True) if task.row_counts[-1] > 1 else (False,)
    device = task.overrides.device or "auto"
    found = []
    for model in models:
        both = device == "auto" and model.runtime in task.gpus
        # A device that is named is used; the processor alone has no layers elsewhere.
        named = device not in ("auto", "cpu")
        layers_to_try = (-1, 0) if both else (-1,) if named else (0,)
        # Where no layers are counted, the whole model is here or there.
        places = (
            (device, "cpu") if both and "gpu_layers" not in backend_of(model).knows else (device,)
        )
        packed = task.profile == "memory" and model.packs_kv
        choices = itertools.product(
            _values(model, task, "unified_kv", False, layouts),
            _values(model, task, "kv_type", "f16", (_cache(model, packed=packed),)),
            _values(model, task, "gpu_layers", 0, layers_to_try),
            _values(model, task, "device_sampling", False, (False,)),
            places,
        )
        for unified, kv_type, layers, sampling, place in choices:
            settings = RunnerSettings(
                threads=task.overrides.threads or task.cores,
                unified_kv=unified,
                kv_type=kv_type,
                gpu_layers=layers,
                device=place,
                device_sampling=sampling,
            )
            found.append(Candidate(model, settings))
    return found


def _cache(model: ModelFile, *, packed: bool) -> KvType:
    """The type that the file was made for, else half the bytes where memory counts most."""
    return "q8_0" if packed and model.kv_type == "f16" else model.kv_type


def _values(
    model: ModelFile, task: PlanTask, name: str, unknown: Any, free: tuple[Any, ...]
) -> tuple[Any, ...]:
    """List the values of a setting to try: ``unknown`` where the runtime does not have it, what was
    fixed, or all that is ``free``."""
    if name not in backend_of(model).knows:
        return (unknown,)
    fixed = getattr(task.overrides, name)
    return free if fixed is None else (fixed,)


def sampling_variants(candidate: Candidate, task: PlanTask) -> list[Candidate]:
    """Vary a candidate: the likeliest tokens found on the GPU, where the model runs on one and
    nothing is fixed."""
    if "device_sampling" not in backend_of(candidate.model).knows or not candidate.on_gpu(task):
        return []
    if task.overrides.device_sampling is not None:
        return []
    return [_changed(candidate, device_sampling=True)]


def thread_variants(candidate: Candidate, task: PlanTask) -> list[Candidate]:
    """Vary a candidate: fewer threads, where there are more than two cores to choose among.

    One core less leaves room for the rest of the machine; half of them is what memory bandwidth
    feeds on many processors.
    """
    if task.overrides.threads or task.cores <= 2:
        return []
    fewer = sorted({task.cores - 1, max(1, task.cores // 2)}, reverse=True)
    return [_changed(candidate, threads=threads) for threads in fewer]


def _changed(candidate: Candidate, **settings: Any) -> Candidate:
    return replace(candidate, settings=replace(candidate.settings, **settings))


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
