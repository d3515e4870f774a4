"""From MODEL on the command line to the files that a plan may choose among, and to the choice."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from app.adapters import AdapterFile, adapter_files
from app.figures import aligned
from app.options import ModelOptions, PlanOptions
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.machine.installed import find_installed
from runtimes.models.memory import checkpoint_words, estimate, gib
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend, read_model, stretched
from runtimes.planner.candidates import Overrides, PlanTask
from runtimes.planner.known import load_plan
from runtimes.planner.plan import (
    DEPTHS,
    STALL_S,
    TRIAL_TOKENS,
    Alternative,
    Plan,
    PlanWorkload,
    Profile,
)
from runtimes.settings import RunnerSettings, SchedulerSettings

logger = logging.getLogger(__name__)

Bits = Literal["4", "8", "any"]


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """Files to choose among."""

    models: tuple[ModelFile, ...]
    unreadable: tuple[tuple[str, str], ...]  # a name, and what is wrong with it
    accuracy: dict[str, float]  # on tasks (0 to 1), by path, where a manifest says one
    bits: tuple[int, ...]  # their widths
    left: tuple[int, ...] = ()  # the other widths in the folder

    def chosen(self, plan: Plan) -> ModelFile:
        """The file that ``plan`` takes."""
        return next(model for model in self.models if str(model.path) == plan.path)


def plan_files(model: str, options: ModelOptions, bits: Bits | None) -> PlanFiles:
    """The files of one bit width: ``bits``, or 4, or the least that the folder has.

    A file that --recipe or --file names, or that MODEL is, stands by itself. Raises ModelError when
    the folder has no file of that width, or none can be read, and RequestError as ``model_file``.
    """
    from app.models.library import locate, model_file
    from quantize.manifest import NAME, entry_path, load_manifest

    model = locate(model)
    folder = Path(model)
    if options.recipe or options.file or not (folder / NAME).is_file():
        return PlanFiles((model_file(model, options),), (), {}, ())
    entries = load_manifest(folder).files
    widths = sorted({entry.bits for entry in entries})
    wanted = [4] if 4 in widths else widths[:1]
    if bits is not None:
        wanted = widths if bits == "any" else [int(bits)]
    if not set(wanted) & set(widths):
        raise ModelError(
            f"{model} has no file of {bits} bits; it has {', '.join(map(str, widths)) or 'none'}"
        )
    models, unreadable, accuracy = [], [], {}
    for entry in entries:
        if entry.bits not in wanted:
            continue
        try:
            path = entry_path(folder, entry)
            models.append(stretched(read_model(path), options.rope))
        except IngotError as error:
            unreadable.append((Path(entry.path).name, str(error)))
            continue
        if entry.quality:
            accuracy[str(path)] = entry.quality.task_accuracy
    if not models:
        said = "; ".join(why for _, why in unreadable)
        raise ModelError(f"no file of {model} can be read: {said}")
    left = tuple(width for width in widths if width not in wanted)
    return PlanFiles(tuple(models), tuple(unreadable), accuracy, tuple(wanted), left)


def task_for(
    workload: PlanWorkload,
    profile: Profile,
    overrides: Overrides | None = None,
    depth: int | None = None,
) -> PlanTask:
    """The task on this machine as it is now, with the GPUs that self-tests have listed. ``depth``
    is the workload's own where it is None."""
    from runtimes.machine.cpu import available_cores
    from runtimes.machine.hardware import detect
    from runtimes.machine.selftest import remembered
    from runtimes.models.registry import MODULES

    listed = {name: health.devices for name in MODULES if (health := remembered(name))}
    return PlanTask(
        workload,
        profile,
        cores=available_cores(),
        free=detect().ram_available,
        gpus=frozenset(name for name, devices in listed.items() if any(d.auto for d in devices)),
        overrides=overrides or Overrides(),
        depth=DEPTHS[workload] if depth is None else depth,
    )


def check_depth(depth: int | None, models: Sequence[ModelFile], task: PlanTask) -> None:
    """Raise RequestError for a --depth that the context has no room for."""
    most = task.most_depth(models)
    if depth is not None and depth > most:
        context = min(map(task.context, models))
        raise RequestError(
            f"--depth {depth:,}: at most {most:,} with a context of {context:,} tokens, since a"
            f" trial needs {TRIAL_TOKENS} more; --context sets another"
        )


def overrides(options: ModelOptions, settings: PlanOptions, slots: int | None) -> Overrides:
    """Collect what the user has fixed. Raises RequestError for a budget that no layout could
    have."""
    if settings.kv_tokens is not None and not settings.unified_kv:
        raise RequestError("--kv-tokens is for one cache of all slots: give --unified-kv with it")
    given = {**asdict(options), **asdict(settings)} | {"slots": slots}
    given["batch"] = settings.batch_tokens
    return Overrides(**{field.name: given[field.name] for field in fields(Overrides)})


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """File and settings to load. ``planned``: whether `ingot plan` has chosen them, by the ``plan``
    among these files."""

    file: ModelFile
    settings: RunnerSettings
    scheduling: SchedulerSettings
    planned: bool
    adapters: tuple[AdapterFile, ...] = ()
    plan: Plan | None = None
    among: tuple[ModelFile, ...] = ()


def choose(
    model: str,
    options: ModelOptions,
    settings: PlanOptions,
    workload: PlanWorkload,
    slots: int | None = None,
    *,
    reproducible: bool = False,
    adapters: Sequence[str] | None = None,
    depth: int | None = None,
) -> LoadChoice:
    """The file and settings of MODEL: as `ingot plan` has chosen for this workload, profile and
    width, with what the user fixes on top; without a plan the defaults. Of plans for several depths
    the one nearest to ``depth`` is taken (None: the workload's own). ``reproducible`` excludes what
    lets rows depend on each other; ``adapters`` are as a user gives them. Takes milliseconds, and
    as long as adapters are read.

    Raises ModelError or RequestError.
    """
    from app.models.library import model_file

    if reproducible and settings.unified_kv:
        raise RequestError(
            "--reproducible: in one cache of all slots a row depends on the others; leave"
            " --unified-kv out"
        )
    files = plan_files(model, options, settings.bits)
    fixed = overrides(options, settings, slots)
    # A plan made with the same settings fixed (slots are a front end's, not always the user's),
    # else the one made without any.
    asked = dict.fromkeys((fixed, replace(fixed, slots=None), Overrides()))
    tasks = (task_for(workload, settings.profile, some, depth) for some in asked)
    plan = next((p for t in tasks if (p := load_plan(files.models, t, nearest=True))), None)
    if plan is not None:
        file = stretched(read_model(plan.path), options.rope)
        base, scheduling = plan.settings, plan.scheduling()
        logger.info("planned: %s on %s: %s", plan.name, plan.runtime, "; ".join(plan.reasons))
    else:
        usable = (one for one in files.models if find_installed(one.runtime))
        file = next(usable, files.models[0]) if settings.bits else model_file(model, options)
        base = RunnerSettings(kv_type=file.kv_type)
        scheduling = SchedulerSettings(max_stall_s=STALL_S[settings.profile])
        logger.info(
            "not planned: %s on %s with the defaults; `ingot plan` finds the best settings",
            file.path.name,
            file.runtime,
        )
    note_context(options, file)
    draft = None if settings.draft is None else draft_path(settings.draft)
    speculation = settings.speculation or draft is not None
    scheduling = replace(scheduling, speculation=speculation)
    base = replace(base, **{k: v for k, v in asdict(fixed).items() if v is not None}, draft=draft)
    if reproducible:
        base = replace(base, unified_kv=False, device_sampling=False, reproducible=True)
    beside = adapter_files(adapters, file, reproducible=base.reproducible)
    # Files of another width answer otherwise.
    among = files.models if len(files.bits) == 1 else (file,)
    return LoadChoice(file, base, scheduling, plan is not None, beside, plan, among)


def draft_path(draft: str) -> Path:
    """The file that --draft names. Raises ModelError or RequestError, which say of what."""
    from app.models.library import model_file

    try:
        return model_file(draft, ModelOptions()).path.absolute()
    except IngotError as error:
        raise type(error)(f"--draft: {error}") from error


def note_context(options: ModelOptions, file: ModelFile) -> None:
    """Say so when --context asks for more than the model has."""
    if options.context is not None and options.context > file.context_length:
        logger.warning(
            "--context %s: %s supports %s tokens, so it gets these",
            f"{options.context:,}",
            file.path.name,
            f"{file.context_length:,}",
        )


# A plan for people and for programs.


_CONTEXTS = (1024, 4096, 16384, 65536)
_SLOTS = (1, 4, 16, 32)


def as_text(plan: Plan, files: PlanFiles, task: PlanTask, *, remembered: bool) -> str:
    """Choice, reasons, alternatives and the memory table."""
    chosen = plan.settings
    knows_kv = "kv_type" in backend(plan.runtime).knows
    more = {
        f"keys and values {chosen.kv_type if knows_kv else 'as the graph has them'}": True,
        "one cache for all slots": chosen.unified_kv,
        f"{chosen.gpu_layers} layers on the GPU (-1: all)": chosen.gpu_layers,
        f"on {chosen.device}": chosen.device != "auto",
        "likeliest tokens found on the device": chosen.device_sampling,
    }
    more_memory = checkpoint_words(estimate(files.chosen(plan), chosen), task.free)
    lines = [
        f"{plan.workload}, {plan.profile}: {plan.name} on {plan.runtime}",
        f"  {chosen.slots} slot{'s' if chosen.slots > 1 else ''} x {chosen.context:,} tokens, "
        f"{chosen.threads} thread{'s' if chosen.threads != 1 else ''}, steps of up to "
        f"{chosen.batch} tokens, {', '.join(text for text, holds in more.items() if holds)}",
        f"  {gib(plan.memory)} of memory, {gib(task.free)} are free",
        *((f"  {more_memory}",) if more_memory else ()),
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
    if lost := cache_losses(Path(plan.path)):
        lines += ["", lost]
    lines += ["", f"Memory of {plan.name} in GiB, slots by tokens of context (- does not fit)"]
    return "\n".join([*lines, *_indented(_memory_table(plan, files, task))]) + "\n"


def cache_losses(path: Path) -> str:
    """The divergence of a file with each type of keys and values that `ingot measure` has measured;
    empty without any."""
    from quantize.cards import known_cards

    card = known_cards([path]).get(path)
    if card is None or not card.caches:
        return ""
    found = sorted(card.caches.items(), key=lambda one: one[1].kl_mean)
    told = ", ".join(f"{kind} {fidelity.kl_mean:.2g}" for kind, fidelity in found)
    return f"KL by the type of keys and values, behind {card.cache_tokens:,} tokens: {told}"


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
    model = files.chosen(plan)
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
    settings, layers = a.settings, a.settings.gpu_layers
    parts = {
        a.file: True,
        "unified": settings.unified_kv,
        settings.kv_type: settings.kv_type != "f16",
        "GPU" if layers < 0 else f"{layers} layers on the GPU": layers,
        f"on {settings.device}": settings.device != "auto",
        "device sampling": settings.device_sampling,
    }
    return " ".join(text for text, holds in parts.items() if holds)


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows, left=1)]
