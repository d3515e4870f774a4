"""Runs in a child process: llama.cpp's own quantizer."""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantize.build.child import report_progress
from quantize.gguf.imatrixfile import read_matrix
from runtimes.errors import ModelError

_ERROR = 4  # ggml_log_level of ggml.h
_FALLBACK = re.compile(
    r"not divisible by\s+(\d+) \(required for type\s+(\w+)\).*?falling back to\s+(\w+)", re.DOTALL
)
_STEP = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")


class _Log:
    """What llama.cpp says: kept, shown, and turned into progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []

    def __call__(self, level: int, text: bytes | None, _user: Any) -> None:
        line = (text or b"").decode("utf-8", errors="replace")
        self.lines.append(line)
        if level == _ERROR and line.strip("=\n "):
            self.errors.append(line.strip())
        sys.stderr.write(line)
        if step := _STEP.match(line):
            report_progress(int(step[1]) - 1, int(step[2]), "tensors")


def quantize(
    source: str, out: str, ftype: int, imatrix: str | None, types: Mapping[str, int]
) -> list[str]:
    """Quantize the GGUF file ``source`` to ``out``; returns what the user should know.

    ``types`` maps tensor names to a ggml_type of their own.
    """
    from llama_cpp import llama_cpp as lib

    log = _Log()
    callback = lib.llama_log_callback(log)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    params = lib.llama_model_quantize_default_params()
    params.ftype = ftype
    keep: list[Any] = []  # what the pointers in `params` point at
    if imatrix is not None:
        params.imatrix = _matrix(lib, Path(imatrix), keep)
    if types:
        params.tt_overrides = _overrides(lib, types)
    code = lib.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))
    if code != 0:
        raise ModelError("; ".join(log.errors) or f"llama_model_quantize returned {code}")
    return _fallbacks("".join(log.lines))


def _matrix(lib: Any, path: Path, keep: list[Any]) -> Any:
    """A ``llama_model_imatrix_data`` array that ends with an entry without a name."""
    entries = read_matrix(path).entries
    array = (lib.llama_model_imatrix_data * (len(entries) + 1))()
    for item, (name, entry) in zip(array, entries.items(), strict=False):
        means = np.ascontiguousarray(entry.means)
        keep.append(means)
        item.name = name.encode()
        item.data = means.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        item.size = means.size
    return array


def _overrides(lib: Any, types: Mapping[str, int]) -> Any:
    """A ``llama_model_tensor_override`` array that ends with an entry without a pattern.

    One pattern a tensor: the user's patterns are Python's, llama.cpp's another dialect.
    """
    array = (lib.llama_model_tensor_override * (len(types) + 1))()
    for item, (name, kind) in zip(array, types.items(), strict=False):
        item.pattern = f"^{re.escape(name)}$".encode()
        item.type = kind
    return array


def _fallbacks(log: str) -> list[str]:
    """Tensors that got another type because their rows do not fit the blocks of the one wanted."""
    total = re.search(r"of (\d+) tensor\(s\) required fallback quantization", log)
    found = Counter((block, wanted, got) for block, wanted, got in _FALLBACK.findall(log))
    if not total or not found:
        return []
    blocks = " or ".join(sorted({block for block, _, _ in found}, key=int))
    stored = ", ".join(
        f"{count} as {got.upper()} instead of {wanted.upper()}"
        for (_, wanted, got), count in found.most_common()
    )
    return [
        f"{found.total()} of {total[1]} tensors have rows that are not a multiple of {blocks}"
        f" weights, as the type wanted for them needs, and were stored in a larger one: {stored}"
    ]
