"""NVIDIA GPUs, asked of the driver. None are found where nvidia-ml-py is not installed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtimes.hardware import Gpu

log = logging.getLogger(__name__)


def find_gpus() -> tuple[Gpu, ...]:
    """Every GPU that the driver reports; empty without a driver or its Python binding."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.debug("no NVIDIA driver: %s", error)
        return ()
    try:
        count = pynvml.nvmlDeviceGetCount()
        return tuple(_describe(pynvml, index) for index in range(count))
    except pynvml.NVMLError as error:
        log.warning("the NVIDIA driver does not answer: %s", error)
        return ()
    finally:
        pynvml.nvmlShutdown()


def _describe(pynvml: Any, index: int) -> Gpu:
    from runtimes.hardware import Gpu

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_total=int(memory.total),
        memory_free=int(memory.free),
        compute_capability=f"{major}.{minor}",
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
