"""Run in child processes: ggml's own functions, and comparisons of several files at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from quantize.arrays import Bytes, Floats
from quantize.gguf.ggml import packed, rounded
from quantize.gguf.quantize import _quantize
from quantize.gguf.weights import WeightComparison, compare_weights
from quantize.recipes import find_recipe


def stored(rows: Mapping[str, Floats], kinds: Mapping[str, str]) -> dict[str, tuple[Bytes, Floats]]:
    return {
        name: (packed(rows[name], kind), rounded(rows[name], kind)) for name, kind in kinds.items()
    }


def many_times(rows: Floats, kinds: Sequence[str], times: int) -> float:
    """The largest difference between two of so many roundings, on several threads each."""
    means = np.linspace(0.5, 2, rows.shape[1], dtype=np.float32)
    worst = 0.0
    for kind in kinds:
        first = rounded(rows, kind, means)
        again = (rounded(rows, kind, means) for _ in range(times))
        worst = max(worst, *(float(np.abs(other - first).max()) for other in again))
    return worst


def quantized(floats: Path, jobs: Sequence[tuple[Path, str, Path | None]]) -> None:
    """Files, each by its recipe and its importance matrix."""
    for out, recipe, matrix in jobs:
        _quantize(floats, out, find_recipe(recipe).ftype, matrix, {}, {})


def compared(
    files: Sequence[Path], floats: Path, matrices: Sequence[Path]
) -> list[WeightComparison]:
    """Each by its matrix, if there are any."""
    pairs = zip_longest(files, matrices)
    return [compare_weights(path, floats, matrix) for path, matrix in pairs]
