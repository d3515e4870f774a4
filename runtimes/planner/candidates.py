"""Candidates of a plan: files, cache layouts, threads, types of keys and values, offload."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from runtimes.models.memory import DEFAULT_CONTEXT, estimate, gib, largest_slots
from runtimes.models.modelfile import ModelFile, RuntimeName
from runtimes.models.registry import backend_of
from runtimes.planner.plan import TRIAL_TOKENS, Alternative, Figures, PlanWorkload, Profile
from runtimes.settings import FlashAttention, KvType, RunnerSettings

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
