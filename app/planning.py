"""From MODEL on the command line to the files that a plan may choose among, and to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from app.options import ModelOptions
from runtimes.errors import IngotError, ModelError
from runtimes.modelfile import ModelFile
from runtimes.plan import Plan, PlanWorkload, Profile
from runtimes.planner.candidates import Overrides, Task

Bits = Literal["4", "8", "any"]


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """Files to choose among; ``unreadable`` pairs a name with what is wrong with it.

    ``accuracy`` has the task accuracy (0 to 1) of those whose manifest says one, by path.
    """

    models: tuple[ModelFile, ...]
    unreadable: tuple[tuple[str, str], ...]
    accuracy: dict[str, float]
    bits: tuple[int, ...]


def plan_files(model: str, options: ModelOptions, bits: Bits | None) -> PlanFiles:
    """The files of one bit width: ``bits``, or 4, or the least that the folder has.

    A file that --recipe or --file names, or that MODEL is, stands by itself. Raises ModelError when
    the folder has no file of that width, or none can be read, and RequestError as ``model_file``.
    """
    from app.models import model_file
    from quantize.manifest import NAME, entry_path, load_manifest

    folder = Path(model)
    if options.recipe or options.file or not (folder / NAME).is_file():
        return PlanFiles((model_file(model, options),), (), {}, ())
    entries = load_manifest(folder).files
    widths = sorted({entry.bits for entry in entries})
    wanted = _widths(widths, bits)
    chosen = [entry for entry in entries if entry.bits in wanted]
    if not chosen:
        raise ModelError(
            f"{model} has no file of {bits} bits; it has {', '.join(map(str, widths)) or 'none'}"
        )
    models, unreadable, accuracy = [], [], {}
    for entry in chosen:
        try:
            path = entry_path(folder, entry)
            models.append(ModelFile.read(path))
        except IngotError as error:
            unreadable.append((Path(entry.path).name, str(error)))
            continue
        if entry.quality:
            accuracy[str(path)] = entry.quality.task_accuracy
    if not models:
        said = "; ".join(why for _, why in unreadable)
        raise ModelError(f"no file of {model} can be read: {said}")
    return PlanFiles(tuple(models), tuple(unreadable), accuracy, tuple(wanted))


def task_for(workload: PlanWorkload, profile: Profile, overrides: Overrides | None = None) -> Task:
    """The task on this machine as it is now."""
    from runtimes.gpus import find_gpus
    from runtimes.hardware import detect
    from runtimes.load import available_cores

    return Task(
        workload,
        profile,
        cores=available_cores(),
        free=detect().ram_available,
        has_gpu=bool(find_gpus()),
        overrides=overrides or Overrides(),
    )


def known_plan(
    model: str,
    options: ModelOptions,
    workload: PlanWorkload,
    profile: Profile = "balanced",
    *,
    bits: Bits | None = None,
    overrides: Overrides | None = None,
) -> Plan | None:
    """A plan that `ingot plan` has made for this before, in milliseconds; None without one.

    Settings that are asked for must be those that `ingot plan` was given; ``options`` come before
    ``overrides``. Raises as ``plan_files``.
    """
    from runtimes.planner.known import recall_plan

    files = plan_files(model, options, bits)
    fixed = overrides or Overrides()
    fixed = replace(
        fixed,
        context=options.context or fixed.context,
        threads=options.threads or fixed.threads,
    )
    return recall_plan(files.models, task_for(workload, profile, fixed))


def _widths(there: list[int], bits: Bits | None) -> list[int]:
    if bits == "any":
        return there
    if bits is not None:
        return [int(bits)]
    return [4] if 4 in there else there[:1]
