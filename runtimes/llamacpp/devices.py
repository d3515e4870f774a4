"""The devices of ggml's backends: listed, and chosen by name.

llama.cpp's Python bindings leave them out; the functions are those of ggml-backend.h.
"""

import ctypes
from dataclasses import replace
from functools import lru_cache
from typing import Any

from runtimes.backend import Device
from runtimes.errors import ModelError
from runtimes.llamacpp.native import library
from runtimes.settings import RunnerSettings

_GPU, _IGPU = 1, 2  # ggml_backend_dev_type: the others are the processor and what belongs to it


def devices() -> tuple[Device, ...]:
    """Every GPU that this build can use, with what is free of its memory now."""
    ggml, found = _ggml(), _gpus()
    kinds = [ggml.ggml_backend_dev_type(pointer) for pointer in found]
    # llama.cpp takes those within the processor only where there is no other.
    best = min(kinds, default=_GPU)
    return tuple(
        replace(_described(pointer), auto=kind == best)
        for pointer, kind in zip(found, kinds, strict=True)
    )


def offloads(settings: RunnerSettings) -> bool:
    """Whether anything is computed on a GPU with these settings."""
    asked = settings.gpu_layers != 0 and settings.device != "cpu"
    return asked and bool(library().llama_supports_gpu_offload())


def offloaded_layers(settings: RunnerSettings, layers: int) -> int:
    """How many of a model's ``layers`` a GPU computes."""
    if not offloads(settings):
        return 0
    # What follows the last block is one of those that llama.cpp counts.
    return layers if settings.gpu_layers < 0 else min(settings.gpu_layers - 1, layers)


def chosen(name: str) -> Any:
    """Build ``llama_model_params.devices`` for ``RunnerSettings.device``: an array that ends with
    NULL, or None for llama.cpp's own choice. Raises ModelError for a device that is not there."""
    if name == "auto":
        return None
    there = {_described(pointer).name: pointer for pointer in _gpus()}
    wanted = [] if name == "cpu" else [one.strip() for one in name.split(",")]
    for one in wanted:
        if one not in there:
            known = ", ".join(("cpu", *there))
            raise ModelError(f"llama.cpp has no device {one!r} here; there is: {known}")
    return (ctypes.c_void_p * (len(wanted) + 1))(*(there[one] for one in wanted), None)


def _gpus() -> list[int]:
    ggml = _ggml()
    found = (ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count()))
    return [one for one in found if ggml.ggml_backend_dev_type(one) in (_GPU, _IGPU)]


def _described(pointer: int) -> Device:
    ggml, free, total = _ggml(), ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        ggml.ggml_backend_dev_name(pointer).decode(),
        ggml.ggml_backend_dev_description(pointer).decode(errors="replace"),
        total.value or None,
        free.value if total.value else None,
    )


@lru_cache(maxsize=1)
def _ggml() -> Any:
    """The library with the types of what is called here."""
    ggml = library()._lib
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("count", size, []),
        ("get", pointer, [size]),
        ("type", ctypes.c_int, [pointer]),
        ("name", ctypes.c_char_p, [pointer]),
        ("description", ctypes.c_char_p, [pointer]),
        ("memory", None, [pointer, ctypes.POINTER(size), ctypes.POINTER(size)]),
    ):
        function = getattr(ggml, f"ggml_backend_dev_{name}")
        function.restype, function.argtypes = result, arguments
    return ggml
