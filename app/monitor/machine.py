"""How busy the machine is: processor, memory, our processes, GPUs."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from runtimes.machine.cpu import allowed_cpus
from runtimes.machine.gpus import Gpu, GpuReader
from runtimes.machine.hardware import memory_now

OURSELVES = "this program"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One of our processes. ``cpu`` is in percent of one core, ``rss`` in bytes."""

    pid: int
    name: str
    cpu: float
    rss: int


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Sizes are in bytes."""

    cores: tuple[float, ...]  # percent, of each that this process may run on
    ram_used: int
    ram_total: int
    swap_used: int
    swap_total: int
    processes: tuple[ProcessUse, ...]  # this one, first, and all that it has started
    gpus: tuple[Gpu, ...]
    no_gpu: str  # why there are none

    @property
    def cpu(self) -> float:
        """The mean over the cores, percent."""
        return sum(self.cores) / len(self.cores) if self.cores else 0.0

    @property
    def ours(self) -> float:
        """Percent of all cores that our processes take."""
        return sum(p.cpu for p in self.processes) / max(len(self.cores), 1)

    @property
    def rss(self) -> int:
        """Bytes that our processes hold; what several of them map counts in each."""
        return sum(p.rss for p in self.processes)


class MachineReader:
    """Reads the machine again and again; what is a rate is taken since the last reading.

    Used by one thread at a time, not always the same.
    """

    def __init__(self) -> None:
        self._cores = sorted(allowed_cpus())
        self._times = self._core_times()
        self._seen: dict[int, tuple[psutil.Process, float]] = {}
        self._when = time.monotonic()
        self._gpus = GpuReader()

    def read(self) -> MachineUse:
        """The machine now; takes some milliseconds, more with thousands of processes."""
        now = time.monotonic()
        elapsed, self._when = max(now - self._when, 1e-3), now
        before, self._times = self._times, self._core_times()
        total, available = memory_now()
        swap = psutil.swap_memory()
        return MachineUse(
            cores=tuple(_percent(a, b) for a, b in zip(before, self._times, strict=False)),
            ram_used=total - available,
            ram_total=total,
            swap_used=int(swap.used),
            swap_total=int(swap.total),
            processes=self._processes(elapsed),
            gpus=self._gpus.read(),
            no_gpu=self._gpus.missing,
        )

    def close(self) -> None:
        """Let go of the GPU driver."""
        self._gpus.close()

    def _core_times(self) -> list[tuple[float, float]]:
        """Busy and all seconds of each usable core. psutil's own percentages are kept by thread,
        and ours change."""
        times = psutil.cpu_times(percpu=True)
        return [_busy(times[core]) for core in self._cores if core < len(times)]

    def _processes(self, elapsed: float) -> tuple[ProcessUse, ...]:
        me = psutil.Process()
        seen: dict[int, tuple[psutil.Process, float]] = {}
        found = []
        for process in (me, *_children(me)):
            old, before = self._seen.get(process.pid, (None, 0.0))
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    used, rss = times.user + times.system, int(process.memory_info().rss)
                    name = OURSELVES if process == me else _name(process.cmdline())
            except psutil.Error:  # it has ended
                continue
            seen[process.pid] = (process, used)
            since = used - before if old == process else 0.0  # pids are used again
            found.append(ProcessUse(process.pid, name, 100 * max(since, 0.0) / elapsed, rss))
        self._seen = seen
        return tuple(found)


def _busy(times: object) -> tuple[float, float]:
    """As psutil counts: a guest's time is part of user's, and waiting for a disk is idle."""
    fields = times._asdict()  # type: ignore[attr-defined]
    whole = sum(v for name, v in fields.items() if name not in ("guest", "guest_nice"))
    return whole - fields["idle"] - fields.get("iowait", 0.0), whole


def _percent(before: tuple[float, float], after: tuple[float, float]) -> float:
    busy, whole = after[0] - before[0], after[1] - before[1]
    return min(max(100 * busy / whole, 0.0), 100.0) if whole > 0 else 0.0


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _name(command: Sequence[str]) -> str:
    """What a process does: the module that `python -m` runs, else the program."""
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return os.path.basename(command[0]) if command else "?"
