"""NVIDIA GPUs, asked of the driver. None are found where nvidia-ml-py is not installed."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU is."""

    index: int
    name: str
    memory_total: int  # bytes
    memory_free: int
    compute_capability: str
    driver: str


@dataclass(frozen=True, slots=True)
class GpuUse:
    """How busy a GPU is; None where it does not tell."""

    index: int
    name: str
    percent: float | None  # of the last sample period
    memory_used: int  # bytes
    memory_total: int
    watts: float | None


class GpuReader:
    """Reads every GPU again and again, with the driver opened once.

    ``missing`` says why there is none to read; it is empty where there is one.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._nvml: Any = None
        self._handles: list[tuple[Any, str]] = []
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
                self._handles.append((handle, _text(pynvml.nvmlDeviceGetName(handle))))
        except pynvml.NVMLError as error:
            self._lost(error)
        if not self._handles and not self.missing:
            self.missing = "the driver reports no GPU"

    def read(self) -> tuple[GpuUse, ...]:
        """How busy all of them are now; takes a few milliseconds each."""
        return self._each(self._use)

    def describe(self) -> tuple[Gpu, ...]:
        """What all of them are."""
        return self._each(self._describe)

    def _each(self, ask: Callable[[int], T]) -> tuple[T, ...]:
        try:
            return tuple(ask(index) for index in range(len(self._handles)))
        except Exception as error:
            if self._nvml is None or not isinstance(error, self._nvml.NVMLError):
                raise
            self._lost(error)
            return ()

    def close(self) -> None:
        """Let go of the driver. A second call does nothing."""
        nvml, self._nvml, self._handles = self._nvml, None, []
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _lost(self, error: Exception) -> None:
        log.warning("the NVIDIA driver does not answer: %s", error)
        self.missing = f"the NVIDIA driver does not answer: {error}"
        self.close()

    def _use(self, index: int) -> GpuUse:
        handle, name = self._handles[index]
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        percent = self._told(lambda: float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        watts = self._told(lambda: self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        return GpuUse(index, name, percent, int(memory.used), int(memory.total), watts)

    def _describe(self, index: int) -> Gpu:
        handle, name = self._handles[index]
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handle)
        driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        total, free = int(memory.total), int(memory.free)
        return Gpu(index, name, total, free, f"{major}.{minor}", driver)

    def _told(self, ask: Callable[[], float]) -> float | None:
        """None for what this GPU, or a part of one, does not tell."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return None


def find_gpus() -> tuple[Gpu, ...]:
    """Every GPU that the driver reports; empty without a driver or its Python binding."""
    reader = GpuReader()
    try:
        return reader.describe()
    finally:
        reader.close()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
