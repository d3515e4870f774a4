"""Which logical processors share a core, and which cores are near the same memory."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtimes.machine import cgroup

_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: the numbers of its logical processors, and its NUMA node."""

    cpus: tuple[int, ...]
    node: int = 0


def cores(system: Path = _SYSTEM) -> tuple[Core, ...]:
    """The cores that this process may run on, in the order of their nodes; of a core that it may
    use in part only that part. Empty where the system has no affinity (macOS, Windows).

    ``system`` is Linux' /sys/devices/system; what it does not tell is taken as one processor a core
    and one node.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    allowed = os.sched_getaffinity(0)
    node_of = {
        cpu: int(folder.name.removeprefix("node"))
        for folder in system.glob("node/node[0-9]*")
        for cpu in parse_list(cgroup.kernel_text(folder / "cpulist"))
    }
    found = set()
    for cpu in allowed:
        siblings = parse_list(
            cgroup.kernel_text(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")
        )
        shared = tuple(sorted(set(siblings) & allowed)) or (cpu,)
        found.add(Core(shared, node_of.get(cpu, 0)))
    return tuple(sorted(found, key=lambda core: (core.node, core.cpus)))


def shares(of: Sequence[Core], count: int) -> tuple[tuple[Core, ...], ...]:
    """The cores dealt out to ``count`` users, as evenly as whole cores allow and neighbours
    together: as many users as nodes get a node each if all nodes have the same size."""
    size, more = divmod(len(of), count)
    ends = [size * i + min(i, more) for i in range(count + 1)]
    return tuple(tuple(of[a:b]) for a, b in itertools.pairwise(ends))


def parse_list(text: str) -> list[int]:
    """The numbers of a list as Linux writes it: ``0-3,8``. Empty for anything else."""
    numbers: list[int] = []
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        return []
    return numbers
