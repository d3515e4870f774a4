"""Prefill and batched decode of model files, and llama.cpp's fast kernels against its safe ones."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.engine.engine import Engine
from runtimes.models.modelfile import ModelFile
from runtimes.planner.measure import SpeedFigures, Workload, measure_speed, prefill_tps
from runtimes.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """One file's figures. ``fast_over_safe`` is the prefill ratio of llama.cpp's two settings."""

    name: str
    runtime: str
    nbytes: int
    figures: SpeedFigures
    fast_over_safe: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Figures for programs: tokens a second, ratios to the fewest rows measured."""
        rows = self.figures.decode_samples
        return {
            "file": self.name,
            "runtime": self.runtime,
            "bytes": self.nbytes,
            "prefill_tps": round(self.figures.prefill_tps, 2),
            "decode_tps": {n: round(tps, 2) for n, tps in self.figures.decode_tps.items()},
            "decode_ratio": {n: round(self.figures.scaling(n), 3) for n in rows},
            "fast_over_safe_prefill": self.fast_over_safe and round(self.fast_over_safe, 3),
        }


def bench_file(
    path: Path, workload: Workload, *, repeats: int, threads: int | None, kernels: bool
) -> FileSpeed:
    """Measure one file; ``kernels`` compares the settings of a GGUF file as well."""
    model = ModelFile.read(path)
    settings = RunnerSettings(threads=threads)
    figures = measure_speed(path, workload, repeats=repeats, settings=settings)
    ratio = None
    if kernels and "extra_buffers" in model.backend.knows:
        ratio = compare_kernels(path, workload.prompt_tokens, repeats=repeats, threads=threads)
    return FileSpeed(path.name, model.runtime, model.nbytes, figures, ratio)


def compare_kernels(path: Path, prompt_tokens: int, *, repeats: int, threads: int | None) -> float:
    """Prefill speed with the processor's special kernels over that without, rounds in turn."""

    def settings(extra: bool) -> RunnerSettings:
        return RunnerSettings(
            slots=1, context=prompt_tokens + 1, threads=threads, extra_buffers=extra
        )

    def one(extra: bool) -> float:
        # One engine at a time: see app.bench.work.loaded.
        with Engine.load(path, settings(extra)) as engine:
            prefill_tps(engine, prompt_tokens)
            return prefill_tps(engine, prompt_tokens)

    return statistics.median(one(True) / one(False) for _ in range(repeats))


def table(results: Iterable[FileSpeed], rows: tuple[int, ...]) -> list[list[str]]:
    """Header and lines of the table for people."""
    ratios = [n for n in rows if n != min(rows)]
    head = ["file", "runtime", "MB", "prefill tok/s"]
    head += [f"decode tok/s, {n} row{'s' if n > 1 else ''}" for n in rows]
    head += [f"{n} : {min(rows)}" for n in ratios]
    lines = [head]
    for result in results:
        figures = result.figures
        lines.append(
            [
                result.name,
                result.runtime,
                f"{result.nbytes / 1e6:,.1f}",
                f"{figures.prefill_tps:,.0f}",
                *(f"{figures.decode_tps[n]:,.1f}" for n in rows),
                *(f"{figures.scaling(n):.2f}x" for n in ratios),
            ]
        )
    return lines
