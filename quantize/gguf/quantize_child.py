"""Runs in a child process: llama.cpp's own quantizer."""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any

from runtimes.errors import ModelError


def quantize(source: str, out: str, ftype: int) -> list[str]:
    """Quantize the GGUF file ``source`` to ``out``; returns what the user should know."""
    from llama_cpp import llama_cpp

    lines: list[str] = []

    def log(_level: int, text: bytes | None, _user: Any) -> None:
        line = (text or b"").decode("utf-8", errors="replace")
        lines.append(line)
        sys.stderr.write(line)

    callback = llama_cpp.llama_log_callback(log)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftype
    code = llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))
    if code != 0:
        raise ModelError(f"llama_model_quantize returned {code}")
    return _fallbacks("".join(lines))


def _fallbacks(log: str) -> list[str]:
    """K-quants need rows of a multiple of 256 weights; llama.cpp takes another type for others."""
    match = re.search(r"(\d+) of (\d+) tensor\(s\) required fallback quantization", log)
    if not match:
        return []
    return [
        f"{match[1]} of {match[2]} tensors have rows that are no multiple of 256 weights and got a"
        " larger type instead"
    ]
