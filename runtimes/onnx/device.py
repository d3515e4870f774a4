"""Devices that a graph runs on: the execution providers beside the processor's, by the names users
give."""

import contextlib
import ctypes
import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.backend import Device
from runtimes.errors import ModelError, RuntimeMissingError
from runtimes.machine.gpus import find_gpus
from runtimes.onnx.graph_file import FLOATS, INT64, any_shape, constant, model, node, value_info

log = logging.getLogger(__name__)

_PROCESSOR = "CPUExecutionProvider"
_LIBRARY = "libonnxruntime_providers_cuda.so"


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider, and how what it needs is installed."""

    name: str  # as users know it
    ort: str  # ONNX Runtime's name
    memory: str  # what ONNX Runtime calls its memory
    install: str
    addresses: bool = False  # whether a part of a tensor can be named by where it begins
    halves: bool = False  # whether its attention computes in floats of 16 bits only


@dataclass(frozen=True, slots=True)
class Target:
    """One device."""

    provider: Provider
    index: int = 0

    @property
    def name(self) -> str:
        """As ``RunnerSettings.device`` has it."""
        return f"{self.provider.name}:{self.index}" if self.index else self.provider.name

    @property
    def memory(self) -> tuple[str, int]:
        """The name and number of its memory in ONNX Runtime."""
        return self.provider.memory, self.index


_CUDA = Provider(
    "CUDA",
    "CUDAExecutionProvider",
    "cuda",
    "pip install 'onnxruntime-gpu[cuda,cudnn]'",
    addresses=True,
    halves=True,
)
_WEBGPU = Provider("WebGPU", "WebGpuExecutionProvider", "webgpu", "pip install onnxruntime-webgpu")
_PROVIDERS = (_CUDA, _WEBGPU)


def devices() -> tuple[Device, ...]:
    """List the devices that a session can be opened on now."""
    import onnxruntime as ort

    found: list[Device] = []
    offered = ort.get_available_providers()
    gpus = find_gpus() if _CUDA.ort in offered else ()
    if gpus and _answers(_CUDA):
        found = [
            Device(Target(_CUDA, gpu.index).name, gpu.name, gpu.memory_total, gpu.memory_free)
            for gpu in gpus
        ]
    if _WEBGPU.ort in offered and _answers(_WEBGPU):
        found.append(Device(_WEBGPU.name, "the GPU that WebGPU chooses", auto=False))
    return tuple(found)


def target_of(device: str) -> Target | None:
    """The device of this name; None for the processor. ``auto`` is a GPU of CUDA where there is
    one. Raises RuntimeMissingError for one that this package has not, ModelError for no name."""
    if device == "cpu":
        return None
    import onnxruntime as ort

    offered = ort.get_available_providers()
    if device == "auto":
        return Target(_CUDA) if _CUDA.ort in offered and find_gpus() else None
    name, _, index = device.partition(":")
    known = {one.name.lower(): one for one in _PROVIDERS}
    provider = known.get(name.lower())
    if provider is None or (index and not (provider is _CUDA and index.isdecimal())):
        names = ", ".join(("cpu", *(one.name for one in devices())))
        raise ModelError(f"ONNX Runtime has no device {device!r} here; there is: {names}")
    if provider.ort not in offered:
        raise RuntimeMissingError(
            f"the installed ONNX Runtime cannot use {provider.name}: it was built without it."
            f" In an environment without onnxruntime: {provider.install}"
        )
    return Target(provider, int(index or 0))


def open_session(graph: str | bytes, options: Any, target: Target | None) -> Any:
    """A session there. Raises RuntimeMissingError when the device cannot be used, and what ONNX
    Runtime raises for the graph."""
    import onnxruntime as ort

    if target is None:
        return ort.InferenceSession(graph, options, providers=[_PROCESSOR])
    provider = target.provider
    own = (provider.ort, {"device_id": str(target.index)} if provider is _CUDA else {})
    said = io.StringIO()  # it prints what it cannot open, and goes on without
    try:
        with contextlib.redirect_stdout(said):
            if provider is _CUDA:  # the libraries of its packages lie where no system looks
                ort.preload_dlls()
            session = ort.InferenceSession(graph, options, providers=[own, _PROCESSOR])
    except Exception as error:
        words = ("adapter", "device", "driver", "libcu", "cuda failure", provider.ort.lower())
        if any(word in str(error).lower() for word in words):
            raise RuntimeMissingError(_unusable(target, str(error))) from error
        raise
    finally:
        log.debug("ONNX Runtime says of %s: %s", target.name, said.getvalue())
    if provider.ort not in session.get_providers():
        raise RuntimeMissingError(_unusable(target, ""))
    return session


def _unusable(target: Target, said: str) -> str:
    """Name what is missing, as far as it can be found out."""
    reason = " ".join(said.split())[:300]
    if target.provider is _CUDA:
        reason = _library_problem() or reason or "the driver reports no GPU"
    return (
        f"ONNX Runtime cannot use {target.name}: {reason or 'it found none'}."
        f" It needs a driver of the GPU and: {target.provider.install}"
    )


def _library_problem() -> str:
    """Why the library of the CUDA provider cannot be loaded; empty when it can."""
    import onnxruntime as ort

    folder = Path(ort.__file__).parent / "capi"
    try:
        for name in ("libonnxruntime_providers_shared.so", _LIBRARY):
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""


def _answers(provider: Provider) -> bool:
    """Whether a session can be opened with it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        open_session(zeros(), options, Target(provider))
    except Exception as error:  # onnxruntime's exceptions share no base class but Exception
        log.debug("%s cannot be used: %s", provider.name, error)
        return False
    return True


def zeros(nbytes: int = 4) -> bytes:
    """``made`` is zeros of ``shape`` [4], with elements of ``nbytes``."""
    element = FLOATS[nbytes]
    return model(
        [node("Expand", ("zero", "shape"), "made")],
        [value_info("shape", INT64, 4)],
        [any_shape("made", element)],
        [constant("zero", element, 1, bytes(nbytes))],
    )
