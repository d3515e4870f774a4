"""Run in child processes: ggml's own functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantize.arrays import Bytes, Floats
from quantize.gguf.ggml import packed, rounded


def stored(rows: Floats, kinds: Sequence[str]) -> dict[str, tuple[Bytes, Floats]]:
    return {kind: (packed(rows, kind), rounded(rows, kind)) for kind in kinds}


def many_times(rows: Floats, kinds: Sequence[str], times: int) -> float:
    """The largest difference between two of so many roundings, on several threads each."""
    means = np.linspace(0.5, 2, rows.shape[1], dtype=np.float32)
    worst = 0.0
    for kind in kinds:
        first = rounded(rows, kind, means)
        again = (rounded(rows, kind, means) for _ in range(times))
        worst = max(worst, *(float(np.abs(other - first).max()) for other in again))
    return worst
