"""What there is to try: files, cache layouts, threads, types of keys and values, offload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from runtimes.models.memory import (
    DEFAULT_CONTEXT,
    Layout,
    MemoryEstimate,
    estimate,
    gib,
    largest_slots,
    require_fit,
)
from runtimes.models.modelfile import ModelFile
from runtimes.planner.plan import Alternative, PlanWorkload, Profile
from runtimes.settings import KvType, RunnerSettings

ROWS = (4, 8, 16, 32)  # numbers of slots that a batch may get
_FEW = 4
_SHARE = 0.75  # of the free memory; the prefix cache and the rest of the machine need some


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user has fixed; None leaves it to the planner."""

    slots: int | None = None
    context: int | None = None
    threads: int | None = None
    batch: int | None = None
    kv_type: KvType | None = None
    unified_kv: bool | None = None
    gpu_layers: int | None = None
    kv_tokens: int | None = None
    device_sampling: bool | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What is planned for, and on what: ``cores`` that may be used, ``free`` bytes of memory."""

    workload: PlanWorkload
    profile: Profile
    cores: int
    free: int
    has_gpu: bool = False
    overrides: Overrides = Overrides()

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """One file with the settings that change its speed."""

    model: ModelFile
    threads: int
    unified_kv: bool = False
    kv_type: KvType = "f16"
    gpu_layers: int = -1
    device_sampling: bool = False

    def settings(self, slots: int, context: int, batch: int | None = None) -> RunnerSettings:
        """What a runner is asked for."""
        return RunnerSettings(
            slots=slots,
            context=context,
            batch=batch or RunnerSettings().batch,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            unified_kv=self.unified_kv,
            kv_type=self.kv_type,
            device_sampling=self.device_sampling,
        )

    def memory(self, task: Task, slots: int, batch: int | None = None) -> MemoryEstimate:
        """What it needs with this many slots, and ``batch`` tokens a step if it is known."""
        layout = self._layout(task)
        layout["batch"] = batch or layout["batch"]
        return estimate(self.model, slots, task.context(self.model), **layout)

    def slots_that_fit(self, task: Task, most: int) -> int:
        """At most ``most``; 0 when not even one fits. A GPU's memory is not counted."""
        if task.has_gpu and self.gpu_layers:
            return most
        return largest_slots(
            self.model, task.context(self.model), task.usable, most=most, **self._layout(task)
        )

    def require_fit(self, task: Task, slots: int) -> None:
        """Raises OutOfMemoryError, with what would fit, where ``slots`` do not."""
        require_fit(
            self.model,
            slots,
            task.context(self.model),
            task.usable,
            said=f"may be used: three quarters of the {gib(task.free)} that are free",
            **self._layout(task),
        )

    def _layout(self, task: Task) -> Layout:
        return Layout(
            kv_type=self.kv_type,
            batch=task.overrides.batch or RunnerSettings().batch,
            unified_kv=self.unified_kv,
            kv_tokens=task.overrides.kv_tokens,
            device_sampling=self.device_sampling,
        )

    def describe(self) -> Alternative:
        """This candidate without figures."""
        return Alternative(
            self.model.path.name,
            self.model.runtime,
            self.threads,
            self.unified_kv,
            self.kv_type,
            self.gpu_layers,
            self.device_sampling,
        )


def candidates(models: Iterable[ModelFile], task: Task) -> list[Candidate]:
    """Every file with every layout, on all cores. What was fixed is fixed in all of them."""
    fixed = task.overrides
    found = []
    for model in models:
        device = bool("device_sampling" in model.backend.knows and fixed.device_sampling)
        for unified in _layouts(model, task):
            for kv_type in _kv_types(model, task):
                for layers in _offloads(model, task):
                    threads = fixed.threads or task.cores
                    found.append(Candidate(model, threads, unified, kv_type, layers, device))
    return found


def sampling_variants(candidate: Candidate, task: Task) -> list[Candidate]:
    """The same with tokens chosen on the GPU, where the model runs on one and nothing is fixed."""
    able = "device_sampling" in candidate.model.backend.knows
    if not (able and task.has_gpu and candidate.gpu_layers):
        return []
    if task.overrides.device_sampling is not None:
        return []
    return [replace(candidate, device_sampling=True)]


def thread_variants(candidate: Candidate, task: Task) -> list[Candidate]:
    """The same with fewer threads, where there are more than two cores to choose among.

    One core less leaves room for the rest of the machine; half of them is what memory bandwidth
    feeds on many processors.
    """
    if task.overrides.threads or task.cores <= 2:
        return []
    fewer = sorted({task.cores - 1, max(1, task.cores // 2)}, reverse=True)
    return [replace(candidate, threads=threads) for threads in fewer]


def split_by_memory(
    found: Sequence[Candidate], task: Task
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Those that fit with the fewest slots that would do, and the others with what they need."""
    least = task.overrides.slots or 1
    fit, refused = [], []
    for candidate in found:
        if candidate.slots_that_fit(task, least) == least:
            fit.append(candidate)
        else:
            need = candidate.memory(task, least).total
            refused.append((candidate, f"needs {gib(need)}; {gib(task.usable)} may be used"))
    return fit, refused


def _layouts(model: ModelFile, task: Task) -> tuple[bool, ...]:
    if "unified_kv" not in model.backend.knows:
        return (False,)
    if task.overrides.unified_kv is not None:
        return (task.overrides.unified_kv,)
    # With one row the two are the same thing.
    return (False, True) if task.row_counts[-1] > 1 else (False,)


def _kv_types(model: ModelFile, task: Task) -> tuple[KvType, ...]:
    if "kv_type" not in model.backend.knows:
        return ("f16",)
    if task.overrides.kv_type:
        return (task.overrides.kv_type,)
    blocks = model.head_dim % 32 == 0
    return ("q8_0",) if task.profile == "memory" and blocks else ("f16",)


def _offloads(model: ModelFile, task: Task) -> tuple[int, ...]:
    if "gpu_layers" not in model.backend.knows:
        return (0,)
    if task.overrides.gpu_layers is not None:
        return (task.overrides.gpu_layers,)
    return (-1, 0) if task.has_gpu else (0,)
