"""Samples of the machine and the engine, and the log of events."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from quantize.disk import human
from runtimes import PACKAGES, own
from runtimes.backend import MemoryEstimate
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, RequestError
from runtimes.machine.cpu import allowed_cpus
from runtimes.machine.gpus import Gpu, GpuReader
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import estimate

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


if TYPE_CHECKING:
    from app.chat.host import EngineHost
    from app.models.planning import LoadChoice

logger = logging.getLogger(__name__)

_HISTORY = 120  # samples
_SPEEDS = 300  # of the engine, which is looked at whether anybody watches or not
_KEPT = 1000  # events
_LONGEST = 4000  # characters of one event


@dataclass(frozen=True, slots=True)
class Event:
    """A record of the log."""

    number: int  # counts up from 1
    time: float  # in seconds since 1970
    level: int  # logging's
    source: str
    text: str

    @property
    def level_name(self) -> str:
        """Name of the level, such as "WARNING"."""
        return logging.getLevelName(self.level)


class EventLog(logging.Handler):
    """Log handler: the last events, for an app that fills the terminal. Any
    thread may log, and any may read. Handlers that print stay: the app has stderr go to a file
    (`app.tui.terminal.stderr_to`)."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._numbers = itertools.count(1)
        self._undo = ExitStack()  # of what ``attach`` has done

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Events with a number above ``after``, oldest first."""
        return tuple(event for event in tuple(self._events) if event.number > after)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; with a traceback, the error's last line."""
        level, when = record.levelno, record.created
        try:
            text = record.getMessage()
        except Exception:  # a record that cannot be put together is an event too
            level, text = logging.ERROR, f"a log line is malformed: {record.msg!r}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text}: {type(error).__name__}: {error}"
        number = next(self._numbers)
        self._events.append(
            Event(number, when, level, record.name.removeprefix(own("")), text[:_LONGEST])
        )

    def attach(self) -> None:
        """Listen to everything, to our packages from INFO on."""
        for logger in (logging.getLogger(), *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger) and not (logger.parent and logger.propagate):
                logger.addHandler(self)
                self._undo.callback(logger.removeHandler, self)
        for name in map(own, PACKAGES):
            logger = logging.getLogger(name)
            self._undo.callback(logger.setLevel, logger.level)
            if logger.getEffectiveLevel() > logging.INFO:
                logger.setLevel(logging.INFO)

    def detach(self) -> None:
        """Stop listening. Without ``attach`` before, nothing happens."""
        self._undo.close()


@dataclass(frozen=True, slots=True)
class MonitorSample:
    """One moment."""

    time: float  # in seconds since 1970
    machine: MachineUse
    engine: EngineStats | None  # None while nothing is loaded
    engine_pid: int | None  # None while no process holds the model
    label: str  # such as "pebble · q4_k_m"
    details: str  # such as "llamacpp · 2 threads"
    needs: MemoryEstimate | None = None  # what the loaded file was expected to need


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens per second over the second before ``time`` (in seconds since 1970)."""

    time: float
    prefill: float
    decode: float


class Monitor:
    """Samples of the machine and the engine, and the log of events. Used from any thread."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._reader: MachineReader | None = None
        self._lock = threading.Lock()
        self._samples: deque[MonitorSample] = deque(maxlen=_HISTORY)
        self._speeds: deque[TokenRates] = deque(maxlen=_SPEEDS)
        self._estimated: tuple[LoadChoice | None, MemoryEstimate | None] = (None, None)
        self._log = EventLog()

    def start(self) -> None:
        """Listen to what is logged from now on."""
        self._log.attach()

    def stop(self) -> None:
        """Stop listening, and let the GPU driver go. Idempotent."""
        self._log.detach()
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None

    def sample(self) -> MonitorSample:
        """Look now, and keep what was seen. Takes some milliseconds, up to a fifth of a second when
        the engine is busy: call it in a thread."""
        host, engine = self._host, self._host.engine
        stats = None if engine is None else host.stats()
        with self._lock:
            if self._reader is None:
                self._reader = MachineReader()
            use, needs = self._reader.read(), self._needs()
            pid = None if engine is None else engine.pid
            sample = MonitorSample(time.time(), use, stats, pid, host.label, host.details, needs)
            self._samples.append(sample)
        return sample

    def _needs(self) -> MemoryEstimate | None:
        """Estimated once a model; None for a graph that cannot be read."""
        choice = self._host.choice
        if choice is not self._estimated[0]:
            self._estimated = choice, None
            with suppress(IngotError):
                if choice is not None:
                    self._estimated = choice, estimate(choice.file, choice.settings)
        return self._estimated[1]

    def note(self) -> None:
        """Keep the engine's speeds of this moment, as far as they are known; costs nothing that one
        notices. To be called once a second."""
        if (stats := self._host.stats()) is not None:
            now = TokenRates(time.time(), stats.prefill_tps_now, stats.decode_tps_now)
            self._speeds.append(now)

    def speeds(self) -> tuple[TokenRates, ...]:
        """Speeds that ``note`` kept, oldest first."""
        return tuple(self._speeds)

    def samples(self) -> tuple[MonitorSample, ...]:
        """The last ones, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Events with a number above ``after``, oldest first."""
        return self._log.events(after)

    def trim(self) -> int:
        """Drop every cached prefix of the engine; how many bytes that freed. May wait for a step:
        call it in a thread. Raises RequestError when no model is loaded."""
        engine = self._host.engine
        if engine is None:
            raise RequestError("no model is loaded, so there are no caches to trim")
        freed = engine.trim()
        logger.info("caches trimmed: %s of keys and values are free again", human(freed))
        return freed
