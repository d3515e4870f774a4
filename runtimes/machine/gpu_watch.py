"""What NVIDIA GPUs did while something ran: how busy they were, their memory, their energy."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from runtimes.machine.gpus import Gpu, GpuReader


@dataclass(slots=True)
class GpuUse:
    """What one GPU did while it was watched."""

    name: str
    memory_used: int = 0  # bytes, the most
    joules: float = 0.0
    told_s: float = 0.0  # for so long it told its power
    _busy: float = 0.0  # percent times seconds
    _busy_told_s: float = 0.0

    def add(self, gpu: Gpu, seconds: float) -> None:
        """It was as ``gpu`` for so long."""
        self.memory_used = max(self.memory_used, gpu.memory_total - gpu.memory_free)
        if gpu.watts is not None:
            self.joules += gpu.watts * seconds
            self.told_s += seconds
        if gpu.percent is not None:
            self._busy += gpu.percent * seconds
            self._busy_told_s += seconds

    @property
    def watts(self) -> float | None:
        """The mean; None where it does not tell."""
        return self.joules / self.told_s if self.told_s else None

    @property
    def percent(self) -> float | None:
        """How busy, the mean; None where it does not tell."""
        return self._busy / self._busy_told_s if self._busy_told_s else None


@dataclass(slots=True)
class GpuWatch:
    """Reads every GPU each ``period_s`` on a thread of its own, from entering to leaving, and once
    more then. The driver's own figures are not newer than 0.1 s."""

    period_s: float = 0.1
    reader: GpuReader = field(default_factory=GpuReader)
    uses: dict[int, GpuUse] = field(default_factory=dict)  # by the GPUs' indexes
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin, if there is any to read."""
        if not self.reader.missing:
            self._thread = threading.Thread(target=self._watch, name="ingot-gpus", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.reader.close()

    def _watch(self) -> None:
        last, over = time.monotonic(), False
        while not over:
            over = self._over.wait(self.period_s)
            taken, now = self.reader.read(), time.monotonic()
            self.add(taken, now - last)
            last = now

    def add(self, gpus: Iterable[Gpu], seconds: float) -> None:
        """They were so for so long."""
        for gpu in gpus:
            self.uses.setdefault(gpu.index, GpuUse(gpu.name)).add(gpu, seconds)


def tokens_per_joule(tokens: float, joules: float | None) -> float | None:
    """None where no energy is known. Tokens a second and watts give the same."""
    return tokens / joules if joules else None
