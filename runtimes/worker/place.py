"""Where a worker process runs: its processors and what it finds in its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """``cpus`` are the logical processors that all of its threads may use (none: all that this
    process may); ``environment`` is set on top of this process's own, such as the GPUs to see."""

    cpus: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def inherited(place: Place) -> Iterator[None]:
    """A process that is started within runs on the place's processors from its first instruction
    on, so that libraries which count them while they are loaded count the right ones.

    Linux keeps the affinity by thread, so that no other thread of this process is moved. Where
    there is none, nothing happens.
    """
    if sys.platform == "linux" and place.cpus:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, place.cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
    else:
        yield
