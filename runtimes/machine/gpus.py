"""NVIDIA GPUs, asked of the driver. None are found where nvidia-ml-py is not installed."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Name, memory and load of a GPU at one moment."""

    index: int
    name: str
    memory_total: int  # bytes
    memory_free: int
    compute_capability: str
    driver: str
    percent: float | None = None  # of the last sample period; None where it does not tell
    watts: float | None = None


class GpuReader:
    """Reads every GPU again and again, with the driver opened once.

    ``missing`` says why there is none to read; it is empty where there is one.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._nvml: Any = None
        self._gpus: list[tuple[Any, Gpu]] = []  # with their handles
        try:
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.missing = f"no NVIDIA driver: {error}"
            return
        self._nvml = pynvml
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name = pynvml.nvmlDeviceGetName(handle)
                major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
                driver = pynvml.nvmlSystemGetDriverVersion()
                self._gpus.append((handle, Gpu(index, name, 0, 0, f"{major}.{minor}", driver)))
        except pynvml.NVMLError as error:
            self._lost(error)
        if not self._gpus and not self.missing:
            self.missing = "the driver reports no GPU"

    def read(self) -> tuple[Gpu, ...]:
        """All of them as they are now; takes a few milliseconds each."""
        try:
            return tuple(self._now(handle, gpu) for handle, gpu in self._gpus)
        except Exception as error:
            if self._nvml is None or not isinstance(error, self._nvml.NVMLError):
                raise
            self._lost(error)
            return ()

    def close(self) -> None:
        """Let go of the driver. A second call does nothing."""
        nvml, self._nvml, self._gpus = self._nvml, None, []
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _lost(self, error: Exception) -> None:
        log.warning("the NVIDIA driver does not answer: %s", error)
        self.missing = f"the NVIDIA driver does not answer: {error}"
        self.close()

    def _now(self, handle: Any, gpu: Gpu) -> Gpu:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return replace(
            gpu,
            memory_total=int(memory.total),
            memory_free=int(memory.free),
            percent=self._told(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            watts=self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        )

    def _told(self, ask: Callable[[], float]) -> float | None:
        """None for what this GPU, or a part of one, does not tell."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def find_gpus() -> tuple[Gpu, ...]:
    """Every GPU that the driver reports; empty without a driver or its Python binding."""
    with contextlib.closing(GpuReader()) as reader:
        return reader.read()


# What NVIDIA GPUs did while something ran: how busy they were, their memory, their energy.


@dataclass(slots=True)
class GpuUse:
    """Load of one GPU over the time that it was watched."""

    name: str
    memory_used: int = 0  # bytes, the most
    joules: float = 0.0
    told_s: float = 0.0  # for so long it told its power
    _busy: float = 0.0  # percent times seconds
    _busy_told_s: float = 0.0

    def add(self, gpu: Gpu, seconds: float) -> None:
        """Add one reading, valid for ``seconds``."""
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
