"""Prefill, a turn and batched decode of model files behind short and long texts, and llama.cpp's
fast kernels against its safe ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, Samples
from app.figures import aligned
from runtimes.engine.engine import Engine
from runtimes.errors import RequestError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import largest_context
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of, read_model
from runtimes.planner.measure import (
    TURN_TOKENS,
    SpeedFigures,
    Workload,
    measure_depths,
    prefill_tps,
)
from runtimes.settings import RunnerSettings

DEPTHS, ROWS = (0, 1024, 4096), (1, 8)  # unasked


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """One file's figures by depth. ``fast_over_safe`` is the prefill ratio of llama.cpp's two
    settings."""

    model: ModelFile
    figures: dict[int, SpeedFigures]
    fast_over_safe: float | None = None


def measure_file(path: Path, options: BenchOptions, *, kernels: bool) -> FileSpeed:
    """Each depth with each number of rows; ``kernels`` compares a GGUF file's settings as well.

    Raises as ``measure_depths``; RequestError for a depth that the model's context has no room for.
    """
    model = read_model(path)
    settings = RunnerSettings(threads=options.threads, flash_attention=options.flash_attention)
    work = Workload(
        options.sizes or ROWS,
        options.prompt_tokens,
        options.decode_tokens,
        depths=options.depths or DEPTHS,
    )
    work = replace(work, depths=_with_room(model, work, settings, asked=bool(options.depths)))
    figures = measure_depths(path, work, repeats=options.repeats, settings=settings)
    ratio = None
    if kernels and "extra_buffers" in backend_of(model).knows:
        ratio = _compare_kernels(path, options).median
    return FileSpeed(model, figures, ratio)


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


def _compare_kernels(path: Path, options: BenchOptions) -> Samples:
    """Prefill speed with the processor's special kernels over that without, round by round."""
    tokens = options.prompt_tokens
    settings = RunnerSettings(slots=1, context=tokens + 1, threads=options.threads)

    def one(extra: bool) -> float:
        # One engine at a time: see app.bench.work.loaded.
        with Engine.load(path, replace(settings, extra_buffers=extra)) as engine:
            prefill_tps(engine, tokens)
            return prefill_tps(engine, tokens)

    return Samples(one(True) / one(False) for _ in range(options.repeats))


def speed_report(files: Sequence[FileSpeed]) -> tuple[list[Any], list[str]]:
    """Figures of each file and depth for programs, and the table of all for people."""
    rows = sorted(next(iter(files[0].figures.values())).decode_tps)
    fewest, *more = rows
    head = ["file", "runtime", "MB", "depth", "prefill", f"turn of {TURN_TOKENS}"]
    head += [f"{n} row{'s' if n > 1 else ''}" for n in rows]
    table = [[*head, *(f"{n} : {fewest}" for n in more)]]
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
                    "depth": depth,
                    "prefill_tps": figures.prefill_tps,
                    "turn_tps": figures.turn_tps,
                    "decode_tps": decode,
                    "decode_ratio": scaling,
                    "fast_over_safe_prefill": file.fast_over_safe,
                }
            )
            names = [model.path.name, model.runtime, f"{model.nbytes / 1e6:,.1f}"]
            numbers = [f"{depth:,}", f"{figures.prefill_tps:,.0f}", f"{figures.turn_tps:,.0f}"]
            numbers += [f"{decode[n]:,.1f}" for n in rows]
            numbers += [f"{scaling[n]:.2f}x" for n in more]
            table.append([*([""] * 3 if number else names), *numbers])
    title = "tokens a second behind so many tokens (depth): prefill, a turn, decode of all rows"
    lines = [title, *aligned(table)]
    lines += [
        f"{file.model.path.name}: prefill with the fast kernels is "
        f"{file.fast_over_safe:.2f}x that with the safe ones"
        for file in files
        if file.fast_over_safe is not None
    ]
    return report, lines
