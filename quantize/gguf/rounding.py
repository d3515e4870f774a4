"""Rounding of weights by ggml's own functions. Runs in a child process."""

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.gguf.quantize import TYPES
from runtimes.machine.cpu import allowed_cpus
from runtimes.models.gguf import TENSOR_TYPES

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_F16 = 1


def rounded(rows: Array, kind: str, means: Array | None = None) -> Array:
    """``rows`` [rows, width] as the type ``kind``, such as "q4_k", stores them. ``means`` [width]
    is the importance matrix of their columns."""
    number = TYPES[kind]
    if number == _F16:
        return rows.astype(np.float16).astype(np.float32)
    to_float = _reader(number)
    rows, out = np.ascontiguousarray(rows), np.empty(rows.shape, np.float32)

    def piece(start: int) -> None:
        part, made = rows[start : start + step], out[start : start + step]
        stored = packed(part, kind, means)  # held until it is read
        to_float(stored.ctypes.data, made.ctypes.data, part.size)

    threads = len(allowed_cpus())
    step = max(1, -(-len(rows) // (4 * threads)))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(piece, range(0, len(rows), step)))
    return out


def packed(rows: Array, kind: str, means: Array | None = None) -> Bytes:
    """``rows`` [rows, width] in that type, as a file has them; as `rounded` otherwise."""
    number = TYPES[kind]
    if number == _F16:
        return rows.astype(np.float16).view(np.uint8).ravel()
    _, block, size = TENSOR_TYPES[number]
    rows = np.ascontiguousarray(rows, np.float32)
    column = None if means is None else np.ascontiguousarray(means, np.float32)
    out = np.empty(rows.size // block * size, np.uint8)
    pointer = None if column is None else column.ctypes.data
    _quantizer()(number, rows.ctypes.data, out.ctypes.data, 0, *rows.shape, pointer)
    return out


class _Traits(ctypes.Structure):
    """``struct ggml_type_traits`` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


@functools.cache
def library_of(name: str) -> Any:
    """One of the libraries of ggml that llama.cpp itself uses, such as "ggml-base"."""
    from llama_cpp import _ggml
    from llama_cpp._ctypes_extensions import load_shared_library

    return load_shared_library(name, _ggml.libggml_base_path)


@functools.cache
def _quantizer() -> Any:
    """``ggml_quantize_chunk``: (type, floats, packed, first, rows, width, matrix)."""
    function = library_of("ggml-base").ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    return function


@functools.cache
def _reader(number: int) -> Any:
    """Ggml's function from packed weights to floats: (packed, floats, count)."""
    traits_of = library_of("ggml-base").ggml_get_type_traits
    traits_of.restype, traits_of.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return kind(traits_of(number).contents.to_float)
