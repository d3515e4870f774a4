"""Speeds in passing, for tests of what is not speed; test_fidelity.py has the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quantize.manifest import FileSpeeds
from quantize.quality import built_child
from runtimes.planner.measure import Workload, measure_depths


def speed(path: Path) -> FileSpeeds:
    """Runs in a child process."""
    built_child._SAMPLE_S = 0.02
    return built_child.speed(path)


def step(path: Path, rows: int) -> float:
    """As that of `quantize.allocate.speed`."""
    work = Workload(rows=(rows,), sample_s=0.02)
    (figures,) = measure_depths(path, work, repeats=3).values()
    return rows / figures.decode_tps[rows]


@contextmanager
def quick_speeds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built_child, "speed", speed)
        yield
