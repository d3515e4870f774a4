"""From MODEL on the command line to the files that a plan may choose among, and to the choice."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from app.adapters import AdapterFile, adapter_files
from app.options import ModelOptions, PlanOptions
from runtimes.errors import IngotError, ModelError, RequestError
from runtimes.machine.installed import find_installed
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.candidates import Overrides, PlanTask
from runtimes.planner.known import load_plan
from runtimes.planner.plan import DEPTHS, STALL_S, TRIAL_TOKENS, PlanWorkload, Profile
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


def plan_files(model: str, options: ModelOptions, bits: Bits | None) -> PlanFiles:
    """The files of one bit width: ``bits``, or 4, or the least that the folder has.

    A file that --recipe or --file names, or that MODEL is, stands by itself. Raises ModelError when
    the folder has no file of that width, or none can be read, and RequestError as ``model_file``.
    """
    from app.models.library import locate
    from app.models.resolve import model_file
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
            models.append(read_model(path))
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
    """What the user has fixed. Raises RequestError for a budget that no layout could have."""
    if settings.kv_tokens is not None and not settings.unified_kv:
        raise RequestError("--kv-tokens is for one cache of all slots: give --unified-kv with it")
    given = {**asdict(options), **asdict(settings)} | {"slots": slots}
    given["batch"] = settings.batch_tokens
    return Overrides(**{field.name: given[field.name] for field in fields(Overrides)})


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """What a command loads. ``planned`` says whether `ingot plan` has chosen it."""

    file: ModelFile
    settings: RunnerSettings
    scheduling: SchedulerSettings
    planned: bool
    adapters: tuple[AdapterFile, ...] = ()


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
    from app.models.resolve import model_file

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
        file, base, scheduling = read_model(plan.path), plan.settings, plan.scheduling()
        logger.info("planned: %s on %s: %s", plan.name, plan.runtime, "; ".join(plan.reasons))
    else:
        usable = (one for one in files.models if find_installed(one.runtime))
        file = next(usable, files.models[0]) if settings.bits else model_file(model, options)
        base = RunnerSettings()
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
    return LoadChoice(file, base, scheduling, plan is not None, beside)


def draft_path(draft: str) -> Path:
    """The file that --draft names. Raises ModelError or RequestError, which say of what."""
    from app.models.resolve import model_file

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
