"""Advice from runs that were recorded, and from the trials of plans: what would be faster for such
rows, in words; and plans that follow it."""

from collections.abc import Sequence
from dataclasses import replace

from app.models.planning import LoadChoice
from runtimes.engine.metrics import EngineStats
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import estimate, gib
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import PlanTask
from runtimes.planner.learned import (
    FasterSetup,
    Setup,
    best_change,
    past_works,
    remember_work,
    shape_of,
)
from runtimes.planner.plan import COMPARED, Plan
from runtimes.settings import RunnerSettings

_TOLD = 0.1  # a gain that is worth a line at the end of a job
_TAKEN = 0.05  # one for which a plan changes
_FLAGS = {
    "unified_kv": ("--split-kv", "--unified-kv"),
    "device_sampling": ("--host-sampling", "--device-sampling"),
}
_LEARNED = "rows of jobs here had about"


def job_advice(
    choice: LoadChoice, settings: RunnerSettings, stats: EngineStats, rows: int
) -> str | None:
    """Record a job of so many rows that one engine has answered with ``settings``, and say what
    would have been 10% faster with nothing but its speed changed."""
    shape = shape_of(stats)
    if shape is None or choice.adapters:
        return None
    now = Setup(choice.file, replace(settings, slots=min(settings.slots, rows)))
    remember_work(choice.file, settings, stats, now.settings.slots)
    room = memory_now()[1] + _memory(now)

    def allowed(to: Setup) -> bool:
        asked = to.settings
        if settings.reproducible and (asked.unified_kv or asked.device_sampling):
            return False
        return asked.kv_type == settings.kv_type and asked.slots <= rows and _memory(to) <= room

    change = best_change(now, choice.plan, choice.among, shape, least=_TOLD, allowed=allowed)
    return None if change is None else in_words(now, change)


def learned_plan(plan: Plan, models: Sequence[ModelFile], task: PlanTask) -> Plan:
    """The plan of a batch for rows like those of the last job with one of these files: another of
    the ways that were measured where it is 5% faster, with the reason."""
    works = past_works(models)
    if not works or plan.workload != "batch" or task.profile in ("latency", "memory"):
        return plan
    shape = works[-1].shape
    now = Setup(next(one for one in models if str(one.path) == plan.path), plan.settings)

    def allowed(to: Setup) -> bool:
        fixed = task.overrides.slots
        return fixed in (None, to.settings.slots) and _memory(to) <= max(task.usable, plan.memory)

    change = best_change(now, plan, models, shape, least=_TAKEN, allowed=allowed)
    said = in_words(now, change) if change else "nothing that was measured is 5% faster for them"
    reasons = [reason for reason in plan.reasons if not reason.startswith(_LEARNED)]
    plan = replace(plan, reasons=(*reasons, f"{_LEARNED} {shape}: {said}"))
    if change is None:
        return plan
    to = change.to
    return replace(
        plan,
        path=str(to.model.path),
        runtime=to.model.runtime,
        settings=to.settings,
        memory=_memory(to),
        figures=to.figures or plan.figures,
    )


def in_words(now: Setup, change: FasterSetup) -> str:
    """For example: 16 -> 32 slots: +18% (estimated), needs 0.70 GiB more; --slots 32."""
    to, parts, flags = change.to, [], []
    if to.model.path != now.model.path:
        parts.append(f"{to.model.path.name} instead of {now.model.path.name}")
        flags.append(f"--file {to.model.path.name}")
    for name in ("slots", *COMPARED):
        old, new = (getattr(one.settings, name) for one in (now, to))
        if old == new or old is None:
            continue
        words = f"{old} -> {new} {name.replace('_', ' ')}"
        flag = _FLAGS[name][new] if name in _FLAGS else f"--{name.replace('_', '-')} {new}"
        parts.append(flag if name in _FLAGS else words)
        flags.append(flag)
    more = _memory(to) - _memory(now)
    need = f", needs {gib(more)} more" if more > 0 else ""
    how = "measured" if change.measured else "estimated"
    return f"{', '.join(parts)}: {change.gain:+.0%} ({how}){need}; {' '.join(flags)}"


def _memory(setup: Setup) -> int:
    return estimate(setup.model, setup.settings).total
