"""Speeds and pictures in passing, for tests of what is neither; test_fidelity.py and
test_report.py have the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quantize.manifest import FileSpeeds
from quantize.quality import built_child
from quantize.report import write
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
def no_pictures() -> Iterator[None]:
    """Reports without drawings, which take longer than what most builds here do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "draw_svg", lambda _chart: "<svg/>")
        patch.setattr(write, "draw_picture", lambda _manifest, path: path.touch())
        yield


@contextmanager
def quick_speeds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built_child, "speed", speed)
        yield
