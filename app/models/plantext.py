"""A plan for people and for programs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.figures import aligned
from app.models.planning import PlanFiles
from runtimes.models.memory import estimate, gib
from runtimes.models.registry import backend
from runtimes.planner.candidates import PlanTask
from runtimes.planner.plan import Alternative, Plan

_CONTEXTS = (1024, 4096, 16384, 65536)
_SLOTS = (1, 4, 16, 32)


def as_text(plan: Plan, files: PlanFiles, task: PlanTask, *, remembered: bool) -> str:
    """Choice, reasons, alternatives and the memory table."""
    chosen = plan.settings
    knows_kv = "kv_type" in backend(plan.runtime).knows
    more = [f"keys and values {chosen.kv_type if knows_kv else 'as the graph has them'}"]
    if chosen.unified_kv:
        more.append("one cache for all slots")
    if chosen.gpu_layers:
        more.append(f"{chosen.gpu_layers} layers on the GPU (-1: all)")
    if chosen.device != "auto":
        more.append(f"on {chosen.device}")
    if chosen.device_sampling:
        more.append("likeliest tokens found on the device")
    lines = [
        f"{plan.workload}, {plan.profile}: {plan.name} on {plan.runtime}",
        f"  {chosen.slots} slot{'s' if chosen.slots > 1 else ''} x {chosen.context:,} tokens, "
        f"{chosen.threads} thread{'s' if chosen.threads != 1 else ''}, steps of up to "
        f"{chosen.batch} tokens, {', '.join(more)}",
        f"  {gib(plan.memory)} of memory, {gib(task.free)} are free",
        f"  speeds behind {_depth(plan)}",
        "",
        "Why" + (" (measured earlier; --again measures again)" if remembered else ""),
        *(f"  {reason}" for reason in plan.reasons),
    ]
    if files.left:
        compared, left = (" and ".join(map(str, widths)) for widths in (files.bits, files.left))
        lines.append(
            f"  only files of {compared} bits: those of {left} differ in accuracy (--bits any)"
        )
    lines += ["", "Measured", *_indented(_measured(plan))]
    lines += [f"  {name}: cannot be read: {why}" for name, why in files.unreadable]
    lines += [f"  {_title(a)}: {a.failure}" for a in plan.alternatives if a.failure]
    if len(files.bits) > 1:
        said = [
            f"  {model.path.name}: {files.accuracy[str(model.path)]:.1%} of the graded questions"
            for model in files.models
            if str(model.path) in files.accuracy
        ]
        all_files = "These files differ in accuracy:"
        lines += ["", all_files if said else "Files of other widths differ in accuracy", *said]
    lines += ["", f"Memory of {plan.name} in GiB, slots by tokens of context (- does not fit)"]
    return "\n".join([*lines, *_indented(_memory_table(plan, files, task))]) + "\n"


def _depth(plan: Plan) -> str:
    """The depth that the plan's speeds hold for, and that of the samples where it is less."""
    text, measured = f"{plan.depth:,} tokens in each row's KV cache", plan.figures.measured_depth
    if measured < plan.depth:
        text += f", extrapolated from those behind {measured:,} and behind none"
    return text


def as_object(plan: Plan, files: PlanFiles, task: PlanTask, *, remembered: bool) -> dict[str, Any]:
    """Everything that the text says, and the parts of the memory."""
    return {
        **plan.to_json(),
        "remembered": remembered,
        "free": task.free,
        "accuracy": files.accuracy,
        "unreadable": [{"file": name, "reason": why} for name, why in files.unreadable],
        "memory_table": [
            {"slots": slots, "context": context, **parts, "fits": parts["total"] <= task.free}
            for slots, estimates in _memory(plan, files).items()
            for context, parts in estimates.items()
        ],
    }


def _measured(plan: Plan) -> list[list[str]]:
    found = [(a, a.figures) for a in plan.alternatives if a.figures]
    rows = sorted({n for _, figures in found for n in figures.decode_tps})
    # Where filling the depth takes too long, what was measured says how far to trust the figures.
    less = any(figures.measured_depth < plan.depth for _, figures in found)
    depth = ["measured behind"] if less else []
    lines = [["", "threads", "prefill tok/s", *(f"decode x{n}" for n in rows), *depth]]
    for a, figures in found:
        decode = [figures.decode_tps.get(n) for n in rows]
        cells = [f"{tps:,.1f}" if tps else "" for tps in decode]
        cells += [f"{figures.measured_depth:,}"] if less else []
        lines.append([_title(a), str(a.settings.threads), f"{figures.prefill_tps:,.0f}", *cells])
    return lines


def _memory_table(plan: Plan, files: PlanFiles, task: PlanTask) -> list[list[str]]:
    estimates = _memory(plan, files)
    lines = [["slots", *(f"{context:,}" for context in estimates[plan.settings.slots])]]
    for slots, parts in estimates.items():
        totals = [part["total"] for part in parts.values()]
        cells = [f"{t / 2**30:.2f}" + ("" if t <= task.free else " -") for t in totals]
        lines.append([str(slots), *cells])
    return lines


def _memory(plan: Plan, files: PlanFiles) -> dict[int, dict[int, dict[str, int]]]:
    """The parts of the memory by slots and context."""
    model = next(model for model in files.models if str(model.path) == plan.path)
    most = model.context_length
    contexts = {plan.settings.context or most, most, *(c for c in _CONTEXTS if c < most)}
    return {
        slots: {
            context: estimate(model, replace(plan.settings, slots=slots, context=context)).to_json()
            for context in sorted(contexts)
        }
        for slots in sorted({*_SLOTS, plan.settings.slots})
    }


def _title(a: Alternative) -> str:
    parts, settings = [a.file], a.settings
    if settings.unified_kv:
        parts.append("unified")
    if settings.kv_type != "f16":
        parts.append(settings.kv_type)
    if layers := settings.gpu_layers:
        parts.append("GPU" if layers < 0 else f"{layers} layers on the GPU")
    if settings.device != "auto":
        parts.append(f"on {settings.device}")
    if settings.device_sampling:
        parts.append("device sampling")
    return " ".join(parts)


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows, left=1)]
