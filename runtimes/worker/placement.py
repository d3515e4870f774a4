"""Where a worker process runs: its processors and what it finds in its environment."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to run."""

    # The logical processors that all threads may use; none: all that this process may.
    cpus: tuple[int, ...] = ()
    # On top of this process's own, such as the GPUs to see.
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def inherited(place: Placement) -> Iterator[None]:
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
