"""Load of the machine: processor, memory, our processes, GPUs."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import psutil

from runtimes import own
from runtimes.machine.cpu import allowed_cpus
from runtimes.machine.gpus import Gpu, GpuReader
from runtimes.machine.hardware import memory_now

OURSELVES = "this program"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process of ours. ``cpu`` is in percent of one core, ``rss`` in bytes."""

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
    """Reads the machine again and again; what is a rate is taken since the last reading."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)  # psutil keeps the last reading of the cores by thread
        self._thread.submit(psutil.cpu_percent, percpu=True).result()
        self._seen: dict[psutil.Process, psutil.Process] = {}  # each knows its own last reading
        self._gpus = GpuReader()

    def read(self) -> MachineUse:
        """The machine now; takes some milliseconds, more with thousands of processes."""
        return self._thread.submit(self._read).result()

    def close(self) -> None:
        """Let go of the GPU driver."""
        self._gpus.close()

    def _read(self) -> MachineUse:
        loads = psutil.cpu_percent(percpu=True)
        total, available = memory_now()
        swap = psutil.swap_memory()
        return MachineUse(
            cores=tuple(loads[core] for core in sorted(allowed_cpus()) if core < len(loads)),
            ram_used=total - available,
            ram_total=total,
            swap_used=int(swap.used),
            swap_total=int(swap.total),
            processes=self._processes(),
            gpus=self._gpus.read(),
            no_gpu=self._gpus.missing,
        )

    def _processes(self) -> tuple[ProcessUse, ...]:
        me = psutil.Process()
        processes = [me]
        with suppress(psutil.Error):
            processes += me.children(recursive=True)
        processes = [self._seen.get(process, process) for process in processes]
        self._seen = {process: process for process in processes}
        found = []
        for process in processes:
            try:
                with process.oneshot():
                    name = OURSELVES if process == me else _name(process.cmdline())
                    cpu, rss = process.cpu_percent(), int(process.memory_info().rss)
            except psutil.Error:  # it has ended
                continue
            found.append(ProcessUse(process.pid, name, cpu, rss))
        return tuple(found)


def _name(command: Sequence[str]) -> str:
    """Name of a process: the module that `python -m` runs, else the program."""
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].removeprefix(own(""))
    return os.path.basename(command[0]) if command else "?"
