"""NVIDIA GPUs, asked of the driver. None are found where nvidia-ml-py is not installed."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU is, and how busy when it was asked."""

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
                name = _text(pynvml.nvmlDeviceGetName(handle))
                major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
                driver = _text(pynvml.nvmlSystemGetDriverVersion())
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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
