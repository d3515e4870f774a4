"""Prefill, a turn and batched decode of model files, behind short and long texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.bench.frame import Figures
from app.bench.options import BenchOptions
from app.figures import aligned
from runtimes.errors import RequestError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import largest_context
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.measure import TURN_TOKENS, SpeedFigures, Workload, measure_depths
from runtimes.settings import KvType, RunnerSettings

_DEPTHS, _ROWS = (0, 1024, 4096), (1, 8)  # unasked


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """One file's figures by depth."""

    model: ModelFile
    kv_type: KvType
    figures: dict[int, SpeedFigures]


def measure_file(path: Path, options: BenchOptions) -> Iterator[FileSpeed]:
    """Each depth with each number of rows, of each type of the cache that the runtime has.

    Raises as ``measure_depths``; RequestError for a depth that the model's context has no room for.
    """
    model = read_model(path)
    usual = RunnerSettings(threads=options.threads, flash_attention=options.flash_attention)
    for kind in options.kv_types_of(model.runtime):
        settings, work = replace(usual, kv_type=kind), workload(options, _DEPTHS)
        work = replace(work, depths=_with_room(model, work, settings, asked=bool(options.depths)))
        figures = measure_depths(path, work, repeats=options.repeats, settings=settings)
        yield FileSpeed(model, kind, figures)


def workload(options: BenchOptions, depths: tuple[int, ...]) -> Workload:
    """The work of a comparison behind ``depths``, unless others are asked for."""
    return Workload(
        options.sizes or _ROWS,
        options.prompt_tokens,
        options.decode_tokens,
        depths=options.depths or depths,
    )


def _with_room(
    model: ModelFile, work: Workload, settings: RunnerSettings, *, asked: bool
) -> tuple[int, ...]:
    """The depths, of those unasked the ones that the context and the memory have room for."""
    widest = replace(settings, slots=max(work.rows))
    most = model.context_length
    if not asked:
        most = min(most, largest_context(model, widest, memory_now()[1]))
    behind = replace(work, depths=(0,)).context
    found = tuple(depth for depth in work.depths if not depth or depth + behind <= most)
    if asked and found != work.depths:
        raise RequestError(
            f"--depth {work.depths[-1]:,}: {model.path.name} has a context of"
            f" {model.context_length:,} tokens, and a sample needs {behind:,} of them"
        )
    return found


def speed_report(files: Sequence[FileSpeed]) -> tuple[list[Figures], list[str]]:
    """Figures of each file and depth for programs, and the table of all for people."""
    rows = sorted(next(iter(files[0].figures.values())).decode_tps)
    fewest, *more = rows
    head = ["file", "runtime", "MB", "depth", "prefill", f"turn of {TURN_TOKENS}"]
    table = [[*head, *map(rows_of, rows), *(f"{n} : {fewest}" for n in more)]]
    report = []
    for file in files:
        model = file.model
        for number, (depth, figures) in enumerate(file.figures.items()):
            decode, scaling = figures.decode_tps, {n: figures.scaling(n) for n in rows}
            report.append(
                {
                    "file": model.path.name,
                    "runtime": model.runtime,
                    "bytes": model.nbytes,
                    "kv_type": file.kv_type,
                    "depth": depth,
                    "prefill_tps": figures.prefill_tps,
                    "turn_tps": figures.turn_tps,
                    "decode_tps": decode,
                    "decode_ratio": scaling,
                }
            )
            cache = "" if file.kv_type == "f16" else f", {file.kv_type}"
            names = [model.path.name + cache, model.runtime, f"{model.nbytes / 1e6:,.1f}"]
            numbers = [f"{depth:,}", f"{figures.prefill_tps:,.0f}", f"{figures.turn_tps:,.0f}"]
            numbers += [f"{decode[n]:,.1f}" for n in rows]
            numbers += [f"{scaling[n]:.2f}x" for n in more]
            table.append([*([""] * 3 if number else names), *numbers])
    title = "tokens a second behind so many tokens (depth): prefill, a turn, decode of all rows"
    return report, [title, *aligned(table)]


def rows_of(number: int) -> str:
    """A number of rows in words."""
    return f"{number} row{'s' if number > 1 else ''}"
