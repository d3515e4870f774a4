"""What NVIDIA GPUs did while something ran."""

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from runtimes.machine.gpus import Gpu, GpuReader

_PERIOD_S = 0.1  # the driver's own figures are not newer more often


@dataclass(slots=True)
class GpuWatch:
    """Reads every GPU now and then on a thread of its own, from entering to leaving."""

    reader: GpuReader = field(default_factory=GpuReader)
    _taken: list[tuple[Gpu, ...]] = field(default_factory=list)
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
        while not self._over.wait(_PERIOD_S):
            self._taken.append(self.reader.read())

    def figures(self, tps: float) -> list[dict[str, Any]]:
        """Of each GPU the means, and the tokens a joule at ``tps`` tokens a second."""
        found = []
        for same in zip(*self._taken, strict=False):
            watts = _mean(same, lambda gpu: gpu.watts)
            found.append(
                {
                    "name": same[0].name,
                    "percent": _mean(same, lambda gpu: gpu.percent),
                    "watts": watts,
                    "memory_used_bytes": max(gpu.memory_total - gpu.memory_free for gpu in same),
                    "tokens_per_joule": tps / watts if watts else None,
                }
            )
        return found

    def words(self, tps: float) -> str:
        """The same for people; empty without a GPU that tells."""
        return "".join(
            f" (GPU {one['percent']:.0f}% busy, {one['watts']:.0f} W,"
            f" {one['tokens_per_joule']:.1f} tokens/J)"
            for one in self.figures(tps)
            if one["percent"] is not None and one["watts"]
        )


def _mean(taken: tuple[Gpu, ...], figure: Callable[[Gpu], float | None]) -> float | None:
    known = [value for gpu in taken if (value := figure(gpu)) is not None]
    return statistics.fmean(known) if known else None
