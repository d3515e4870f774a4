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

# Tests that share models which take minutes to make, or import torch, are two groups of about the
# same length, and come first.
_TOGETHER = ("quantize/build/", "quantize/", "assets/")
_GROUPS = ("quantize/build/", "quantize/", "quantize/")
# Then the files that take longest; the others fill the time beside the last of them, so that all
# workers end at about the same time.
_LONG = (
    "real/test_smollm2",
    "app/serve/test_hostile_clients",
    "app/tui/test_batch_screen",
    "ingot/test_wheel",
    "app/bench/test_bench",
    "app/tui/test_find",
    "app/tui/test_quantize_run",
    "ingot/test_library",
)


def worker() -> int | None:
    """Number of this worker; None in a run of one process."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) if name else None


def keep_to_own_cores() -> None:
    """Give this worker its share of the cores; everything it starts inherits that."""
    number = worker()
    if number is None or not hasattr(os, "sched_setaffinity"):
        return
    cores, count = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    # More workers than cores: two of them share one, where either waits for half of its time.
    os.sched_setaffinity(0, cores[number % len(cores) :: count])


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, so that what they share is made once."""
    file = nodeid.split("::", 1)[0].removeprefix("tests/").removesuffix(".py")
    for folder, group in zip(_TOGETHER, _GROUPS, strict=True):
        if file.startswith(folder):
            return group
    return file


def slowest_first(items: list[pytest.Item]) -> None:
    """Put the longest groups first."""
    places = {group: place for place, group in enumerate((*_TOGETHER, *_LONG))}
    items.sort(key=lambda item: places.get(group_of(item.nodeid), len(places)))


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
