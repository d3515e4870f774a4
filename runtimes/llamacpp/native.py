"""Import llama.cpp once, with its log sent to ``logging``."""

import ctypes
import logging
from collections import deque
from functools import lru_cache
from types import ModuleType
from typing import Any

from runtimes.errors import RuntimeMissingError

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
    """What llama.cpp has said of its errors since the last call, in one line.

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
