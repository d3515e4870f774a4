"""llama.cpp, imported once with its log sent to ``logging``; a batch of tokens for it; and the
devices of ggml's backends, listed, and chosen by name.

llama.cpp's Python bindings leave the devices out; the functions are those of ggml-backend.h.
"""

import ctypes
import logging
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from runtimes.backend import Device
from runtimes.errors import ModelError, RuntimeMissingError
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

_WARN, _ERROR = 3, 4  # ggml_log_level of ggml.h
_recent_errors: deque[str] = deque(maxlen=8)
_last_warning: deque[str] = deque(maxlen=1)
_callbacks: list[Any] = []  # a collected ctypes callback would leave llama.cpp a dangling pointer


def _log(level: int, text: bytes | None, _user: Any) -> None:
    line = (text or b"").decode("utf-8", errors="replace").rstrip()
    if not line.strip(". "):
        return
    if level == _ERROR:
        _recent_errors.append(line)
    elif level == _WARN:
        _last_warning.append(line)
    # llama.cpp's warnings are about its own defaults; they matter with -v only.
    logger.log(logging.INFO if level in (_ERROR, _WARN) else logging.DEBUG, "%s", line)


def recent_errors() -> str:
    """Return llama.cpp's error messages since the last call, in one line.

    Of some failures it only warns; without an error it is the last warning.
    """
    text = "; ".join(_recent_errors or _last_warning)
    _recent_errors.clear()
    _last_warning.clear()
    return text


@lru_cache(maxsize=1)
def library() -> ModuleType:
    """The low-level bindings, initialised. Raises RuntimeMissingError when not installed."""
    try:
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError, FileNotFoundError) as error:
        raise RuntimeMissingError(
            f"llama.cpp cannot be loaded ({error}); install it with: make native"
        ) from error
    callback = llama_cpp.llama_log_callback(_log)
    _callbacks.append(callback)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


class NativeBatch:
    """A ``llama_batch`` of up to ``capacity`` tokens, each in one sequence, over NumPy arrays."""

    def __init__(self, capacity: int) -> None:
        self._token, self._pos, self._seq = np.zeros((3, capacity), np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        # Token i's list of sequences is element i of _seq: wired once, only values change.
        self._seq_pointers = (
            self._seq.ctypes.data + np.arange(capacity, dtype=np.uintp) * self._seq.itemsize
        ).astype(np.uintp)
        int32 = ctypes.POINTER(ctypes.c_int32)
        self.native = native = library().llama_batch()
        native.embd = None
        native.token = self._token.ctypes.data_as(int32)
        native.pos = self._pos.ctypes.data_as(int32)
        native.n_seq_id = self._counts.ctypes.data_as(int32)
        native.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(int32))
        native.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))

    def fill(self, rows: Iterable[StepRow], *, every: bool = False) -> int:
        """Lay the rows out one after another; return how many rows of logits there will be: those
        that rows ask for, or with ``every`` one for each token.
        """
        tokens, positions, slots, logits = list[int](), list[int](), list[int](), list[int]()
        for row in rows:
            count = len(row.tokens)
            silent = 0 if every else count - row.logits
            tokens += row.tokens
            positions += range(row.position, row.position + count)
            slots += [row.slot] * count
            logits += [0] * silent + [1] * (count - silent)
        size = self.native.n_tokens = len(tokens)
        self._token[:size], self._pos[:size], self._seq[:size] = tokens, positions, slots
        self._logits[:size] = logits
        return sum(logits)


_GPU, _IGPU = 1, 2  # ggml_backend_dev_type: the others are the processor and what belongs to it


def devices() -> tuple[Device, ...]:
    """Every GPU that this build can use, with what is free of its memory now."""
    ggml, found = _ggml(), _gpus()
    kinds = [ggml.ggml_backend_dev_type(pointer) for pointer in found]
    # llama.cpp takes those within the processor only where there is no other.
    best = min(kinds, default=_GPU)
    return tuple(
        _described(pointer, auto=kind == best) for pointer, kind in zip(found, kinds, strict=True)
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
    there = {_described(pointer, auto=True).name: pointer for pointer in _gpus()}
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


def _described(pointer: int, *, auto: bool) -> Device:
    ggml, free, total = _ggml(), ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    return Device(
        ggml.ggml_backend_dev_name(pointer).decode(),
        ggml.ggml_backend_dev_description(pointer).decode(errors="replace"),
        total.value or None,
        free.value if total.value else None,
        auto,
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
