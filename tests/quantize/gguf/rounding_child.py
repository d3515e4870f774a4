"""Run in child processes: ggml's own functions, and comparisons of several files at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from quantize.arrays import Bytes, Floats
from quantize.gguf import codes
from quantize.gguf.ggml import packed, rounded, unpacked
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


def compensated_rows(
    rows: Floats, moments: Floats, kinds: Sequence[str]
) -> dict[str, tuple[bool, Floats, Floats]]:
    """Whether each type's codes are put back where they were; and ``rows`` in it, with errors made
    up for and without."""
    found = {}
    means = np.ascontiguousarray(np.diagonal(moments))
    for kind in kinds:
        plain = packed(rows, kind, means).reshape(len(rows), -1)
        made = codes.round_compensated(rows, kind, moments, means).reshape(plain.shape)
        one, block = plain.copy().reshape(-1, codes._BLOCKS[kind][1]), codes._BLOCKS[kind][0]
        scales, offsets = codes.steps_of(one, kind)
        wanted = (unpacked(one, kind, block) - offsets) / scales
        if kind in codes._OF_TABLE:
            own = np.abs(wanted[..., None] - codes._TABLE).argmin(axis=2)
        else:
            own = np.rint(wanted)
        codes.put_codes(one, np.zeros(own.shape, np.uint8), kind)
        emptied = bool((one.ravel() != plain.ravel()).any())
        codes.put_codes(one, own.astype(np.uint8), kind)
        same = emptied and bool((one.ravel() == plain.ravel()).all())
        width = rows.shape[1]
        found[kind] = same, unpacked(made, kind, width), unpacked(plain, kind, width)
    return found


def quantized_and_compensated(
    floats: Path, out: Path, moments: Path, recipe: str = "q4_k_m"
) -> int:
    """A file whose errors are made up for; the number of its tensors that have them."""
    _quantize(floats, out, find_recipe(recipe).ftype, None, {}, {codes.COMPENSATED: "true"})
    return codes.compensate_file(out, floats, moments, None)
