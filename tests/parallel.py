"""The suite on several cores (`pytest -n 2`): each worker keeps to its own cores.

Threads that wait for each other crawl where the processor is shared, and so would two engines that
both take all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

_HERE = Path(__file__).parent
# Tests that share models which take minutes to make stay together, and come first.
_TOGETHER = _HERE / "quantize"


def keep_to_own_cores() -> None:
    """Give this worker its share of the cores; everything it starts inherits that."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or not hasattr(os, "sched_setaffinity"):
        return
    cores, count = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    mine = cores[int(worker.removeprefix("gw")) :: count]
    if mine:
        os.sched_setaffinity(0, mine)


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, so that what they share is made once."""
    file = nodeid.split("::", 1)[0]
    return "quantize" if file.startswith("tests/quantize/") else file


def slowest_first(items: list[pytest.Item]) -> None:
    """Put the longest group first: the others fill the time beside it."""
    items.sort(key=lambda item: not item.path.is_relative_to(_TOGETHER))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one of the workers makes and all use."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    made, done = root / name, root / f"{name}.done"
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            make(made)
            done.touch()
    return made
