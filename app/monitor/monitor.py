"""What is going on: the machine, the engine, and what both have reported."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.monitor.eventlog import Event, EventLog
from app.monitor.machine import MachineReader, MachineUse
from quantize.disk import human
from runtimes.engine.metrics import EngineStats
from runtimes.errors import RequestError

if TYPE_CHECKING:
    from app.chat.host import EngineHost

logger = logging.getLogger(__name__)

_HISTORY = 120  # samples


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment."""

    time: float  # in seconds since 1970
    machine: MachineUse
    engine: EngineStats | None  # None while nothing is loaded
    engine_pid: int | None  # None while no process holds the model
    label: str  # such as "pebble · q4_k_m"
    details: str  # such as "llamacpp · 2 threads"


class Monitor:
    """Samples of the machine and the engine, and the log of events. Used from any thread."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._reader: MachineReader | None = None
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=_HISTORY)
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

    def sample(self) -> Sample:
        """Look now, and keep what was seen. Takes some milliseconds, up to a fifth of a second when
        the engine is busy: call it in a thread."""
        engine = self._host.engine
        stats = self._host.stats() if engine is not None else None
        with self._lock:
            if self._reader is None:
                self._reader = MachineReader()
            sample = Sample(
                time.time(),
                self._reader.read(),
                stats,
                engine.pid if engine is not None else None,
                self._host.label if engine is not None else "",
                self._host.details if engine is not None else "",
            )
            self._samples.append(sample)
        return sample

    def samples(self) -> tuple[Sample, ...]:
        """The last ones, oldest first."""
        with self._lock:
            return tuple(self._samples)

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """What was reported, oldest first: events with a number above ``after``."""
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
