"""llama.cpp, imported once with its log sent to ``logging``, and a batch of tokens for it."""

import ctypes
import logging
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from runtimes.errors import RuntimeMissingError
from runtimes.runner import StepRow

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
    """A ``llama_batch`` of up to ``capacity`` tokens, each in one sequence, over NumPy arrays:
    filling it costs microseconds, not a call per token.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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
        at = outputs = 0
        for row in rows:
            end = at + len(row.tokens)
            self._token[at:end] = row.tokens
            self._pos[at:end] = range(row.position, row.position + len(row.tokens))
            self._seq[at:end] = row.slot
            self._logits[at:end] = every
            if row.logits and not every:
                self._logits[end - row.logits : end] = 1
                outputs += row.logits
            at = end
        self.native.n_tokens = at
        return at if every else outputs
