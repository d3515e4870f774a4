"""Prefill and batched decode of model files, and llama.cpp's fast kernels against its safe ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, Samples
from app.figures import aligned
from runtimes.engine.engine import Engine
from runtimes.models.modelfile import ModelFile
from runtimes.planner.measure import SpeedFigures, Workload, measure_speed, prefill_tps
from runtimes.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """One file's figures. ``fast_over_safe`` is the prefill ratio of llama.cpp's two settings."""

    model: ModelFile
    figures: SpeedFigures
    fast_over_safe: float | None = None


def measure_file(
    path: Path, options: BenchOptions, rows: tuple[int, ...], *, kernels: bool
) -> FileSpeed:
    """Decode with each number of ``rows``; ``kernels`` compares a GGUF file's settings as well."""
    model = ModelFile.read(path)
    settings = RunnerSettings(threads=options.threads)
    work = Workload(rows, options.prompt_tokens, options.decode_tokens)
    figures = measure_speed(path, work, repeats=options.repeats, settings=settings)
    ratio = None
    if kernels and "extra_buffers" in model.backend.knows:
        ratio = _compare_kernels(path, options).median
    return FileSpeed(model, figures, ratio)


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


def speed_report(files: Sequence[FileSpeed], rows: tuple[int, ...]) -> tuple[list[Any], list[str]]:
    """Figures of each file for programs, and the table of all for people."""
    fewest, *more = rows
    head = ["file", "runtime", "MB", "prefill tok/s"]
    head += [f"decode tok/s, {n} row{'s' if n > 1 else ''}" for n in rows]
    table = [[*head, *(f"{n} : {fewest}" for n in more)]]
    report = []
    for file in files:
        model, figures, ratio = file.model, file.figures, file.fast_over_safe
        decode, scaling = figures.decode_tps, {n: figures.scaling(n) for n in rows}
        report.append(
            {
                "file": model.path.name,
                "runtime": model.runtime,
                "bytes": model.nbytes,
                "prefill_tps": figures.prefill_tps,
                "decode_tps": decode,
                "decode_ratio": scaling,
                "fast_over_safe_prefill": ratio,
            }
        )
        numbers = [f"{model.nbytes / 1e6:,.1f}", f"{figures.prefill_tps:,.0f}"]
        numbers += [f"{decode[n]:,.1f}" for n in rows]
        numbers += [f"{scaling[n]:.2f}x" for n in more]
        table.append([model.path.name, model.runtime, *numbers])
    lines = aligned(table)
    lines += [
        f"{file.model.path.name}: prefill with the fast kernels is "
        f"{file.fast_over_safe:.2f}x that with the safe ones"
        for file in files
        if file.fast_over_safe is not None
    ]
    return report, lines
