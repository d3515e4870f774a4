"""A plan for people and for programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.models.planning import PlanFiles
from runtimes.load import backend
from runtimes.models.memory import estimate, gib
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import Task
from runtimes.planner.plan import Alternative, Plan

_CONTEXTS = (1024, 4096, 16384, 65536)
_SLOTS = (1, 4, 16, 32)


def as_text(plan: Plan, files: PlanFiles, task: Task, *, remembered: bool) -> str:
    """Choice, reasons, alternatives and the memory table."""
    chosen = plan.settings
    layout = ", one cache for all slots" if chosen.unified_kv else ""
    lines = [
        f"{plan.workload}, {plan.profile}: {plan.name} on {plan.runtime}",
        f"  {chosen.slots} slot{'s' if chosen.slots > 1 else ''} x {chosen.context:,} tokens, "
        f"{chosen.threads} thread{'s' if chosen.threads != 1 else ''}, steps of up to "
        f"{chosen.batch} "
        "tokens, "
        f"keys and values {_kv(plan)}{layout}{_offload(plan)}",
        f"  {gib(plan.memory)} of memory, {gib(task.free)} are free",
        "",
        "Why" + (" (measured earlier; --again measures again)" if remembered else ""),
        *(f"  {reason}" for reason in plan.reasons),
        *_widths(files),
        "",
        "Measured",
        *_aligned(_measured(plan)),
        *(f"  {name}: cannot be read: {why}" for name, why in files.unreadable),
    ]
    lines += [f"  {_title(a)}: {a.failure}" for a in plan.alternatives if a.failure]
    if len(files.bits) > 1:
        lines += ["", *_accuracy(files)]
    lines += ["", f"Memory of {plan.name} in GiB, slots by tokens of context (- does not fit)"]
    lines += _aligned(_memory_table(plan, _chosen(plan, files), task))
    return "\n".join(lines) + "\n"


def as_object(plan: Plan, files: PlanFiles, task: Task, *, remembered: bool) -> dict[str, Any]:
    """Everything that the text says, and the parts of the memory."""
    model = _chosen(plan, files)
    estimates = [
        {"slots": slots, "context": context, **_estimate(plan, model, slots, context)}
        for slots in sorted({*_SLOTS, plan.settings.slots})
        for context in _contexts(plan, model)
    ]
    return {
        **plan.to_json(),
        "remembered": remembered,
        "free": task.free,
        "accuracy": files.accuracy,
        "unreadable": [{"file": name, "reason": why} for name, why in files.unreadable],
        "memory_table": [{**found, "fits": found["total"] <= task.free} for found in estimates],
    }


def _measured(plan: Plan) -> list[list[str]]:
    found = [a for a in plan.alternatives if a.figures]
    rows = sorted({n for a in found if a.figures for n in a.figures.decode_tps})
    lines = [["", "threads", "prefill tok/s", *(f"decode x{n}" for n in rows)]]
    for a in found:
        if a.figures:
            decode = [a.figures.decode_tps.get(n) for n in rows]
            cells = [f"{tps:,.1f}" if tps else "" for tps in decode]
            lines.append(
                [_title(a), str(a.settings.threads), f"{a.figures.prefill_tps:,.0f}", *cells]
            )
    return lines


def _memory_table(plan: Plan, model: ModelFile, task: Task) -> list[list[str]]:
    contexts = _contexts(plan, model)
    lines = [["slots", *(f"{context:,}" for context in contexts)]]
    for slots in sorted({*_SLOTS, plan.settings.slots}):
        totals = [_estimate(plan, model, slots, context)["total"] for context in contexts]
        cells = [f"{t / 2**30:.2f}" + ("" if t <= task.free else " -") for t in totals]
        lines.append([str(slots), *cells])
    return lines


def _estimate(plan: Plan, model: ModelFile, slots: int, context: int) -> dict[str, int]:
    return estimate(model, replace(plan.settings, slots=slots, context=context)).to_json()


def _contexts(plan: Plan, model: ModelFile) -> list[int]:
    most = model.context_length
    return sorted({plan.settings.context or most, most, *(c for c in _CONTEXTS if c < most)})


def _chosen(plan: Plan, files: PlanFiles) -> ModelFile:
    return next(model for model in files.models if str(model.path) == plan.path)


def _widths(files: PlanFiles) -> list[str]:
    if not files.left:
        return []
    compared, left = (" and ".join(map(str, widths)) for widths in (files.bits, files.left))
    return [f"  only files of {compared} bits: those of {left} differ in accuracy (--bits any)"]


def _accuracy(files: PlanFiles) -> list[str]:
    said = [
        f"  {model.path.name}: {files.accuracy[str(model.path)]:.1%} of the graded questions"
        for model in files.models
        if str(model.path) in files.accuracy
    ]
    return [
        "These files differ in accuracy:" if said else "Files of other widths differ in accuracy",
        *said,
    ]


def _title(a: Alternative) -> str:
    parts, settings = [a.file], a.settings
    if settings.unified_kv:
        parts.append("unified")
    if settings.kv_type != "f16":
        parts.append(settings.kv_type)
    if layers := settings.gpu_layers:
        parts.append("GPU" if layers < 0 else f"{layers} layers on the GPU")
    if settings.device_sampling:
        parts.append("device sampling")
    return " ".join(parts)


def _kv(plan: Plan) -> str:
    known = "kv_type" in backend(plan.runtime).knows
    return plan.settings.kv_type if known else "as the graph has them"


def _offload(plan: Plan) -> str:
    layers = (
        f", {plan.settings.gpu_layers} layers on the GPU (-1: all)"
        if plan.settings.gpu_layers
        else ""
    )
    return layers + (
        ", likeliest tokens found by llama.cpp" if plan.settings.device_sampling else ""
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines
