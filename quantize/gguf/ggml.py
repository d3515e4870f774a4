"""Ggml's own functions: rounding of weights, and times of matrix products on this processor by type
and shape. Runs in a child process.

The products of a model's step are timed one after another, each with weights of its own, in the
buffers that llama.cpp itself would put them into (`make_cpu_buft_list` and `weight_buft_supported`
of src/llama-model-loader.cpp): some types are laid out anew there for faster kernels.
"""

import ctypes
import functools
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.children import report_progress
from quantize.gguf.quantize import TYPES
from runtimes.machine.cpu import allowed_cpus, available_cores
from runtimes.models.gguf import TENSOR_TYPES

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_F32, _F16 = 0, 1


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


def unpacked(rows: Bytes, kind: str, width: int) -> Array:
    """``rows`` [rows, bytes], as a file has them in the type ``kind``, as floats [rows, width]."""
    number, rows = TYPES[kind], np.ascontiguousarray(rows)
    if number == _F32:
        return rows.view(np.float32)
    if number == _F16:
        return rows.view(np.float16).astype(np.float32)
    out = np.empty((len(rows), width), np.float32)
    _reader(number)(rows.ctypes.data, out.ctypes.data, out.size)
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


Shape = tuple[int, int]  # the length of a row, and rows

_MOST_BYTES = 96_000_000  # of weights: more than any cache holds, of a model that is larger
_LEAST_S = 0.1  # that a product is timed for
_LAPS = 5
_PIECE = 32  # rows that are rounded; repeated, they fill a matrix


def kernel_seconds(
    shapes: Iterable[Shape], kinds: Iterable[str], rows: Sequence[int], model_bytes: int
) -> dict[tuple[str, Shape, int], float]:
    """Seconds of the product of a matrix of that type and shape with so many ``rows`` of inputs,
    in a model of ``model_bytes``: how much of it the caches hold decides."""
    cpu = _Cpu()
    cases = [
        (kind, shape)
        for kind, shape in itertools.product(kinds, shapes)
        if shape[0] % TENSOR_TYPES[TYPES[kind]][1] == 0
    ]
    found = {}
    for done, (kind, shape) in enumerate(cases):
        report_progress(done, len(cases), "kernels")
        for count, seconds in cpu.time(kind, shape, rows, min(model_bytes, _MOST_BYTES)).items():
            found[kind, shape, count] = seconds
    report_progress(len(cases), len(cases), "kernels")
    return found


class _Params(ctypes.Structure):
    """``struct ggml_init_params`` of ggml.h."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _Cpu:
    """ggml's processor."""

    def __init__(self) -> None:
        self._base, own = library_of("ggml-base"), library_of("ggml-cpu")
        _declare(self._base)
        for name in ("ggml_backend_cpu_init", "ggml_backend_cpu_reg"):
            getattr(own, name).restype = ctypes.c_void_p
        register = own.ggml_backend_cpu_reg()
        self._backend = own.ggml_backend_cpu_init()
        self._device = self._base.ggml_backend_reg_dev_get(register, 0)
        set_threads = self._base.ggml_backend_reg_get_proc_address(
            register, b"ggml_backend_set_n_threads"
        )
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(set_threads)(
            self._backend, available_cores()
        )
        self._buffers = self._extra_buffers(register)

    def _extra_buffers(self, register: Any) -> list[Any]:
        """Kinds of buffers in which weights of some types are laid out anew."""
        address = self._base.ggml_backend_reg_get_proc_address(
            register, b"ggml_backend_dev_get_extra_bufts"
        )
        if not address:
            return []
        kind = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
        listed = kind(address)(self._device)
        return [*itertools.takewhile(bool, listed)] if listed else []

    def time(
        self, kind: str, shape: Shape, rows: Sequence[int], model_bytes: int
    ) -> dict[int, float]:
        """Seconds a product, by the number of rows."""
        base, (width, height) = self._base, shape
        data = _weights(kind, shape)
        copies = max(1, -(-model_bytes // data.nbytes))
        held = base.ggml_init(_Params(base.ggml_tensor_overhead() * (copies + 4), None, True))
        matrices = [
            base.ggml_new_tensor_2d(held, TYPES[kind], width, height) for _ in range(copies)
        ]
        buffer = self._allocate(held, kind, width)
        try:
            for matrix in matrices:
                base.ggml_backend_tensor_set(matrix, data.ctypes.data, 0, data.nbytes)
            return {count: self._products(matrices, width, count) for count in rows}
        finally:
            base.ggml_backend_buffer_free(buffer)
            base.ggml_free(held)

    def _allocate(self, held: Any, kind: str, width: int) -> Any:
        """Memory for the matrices of ``held``, in the first kind of buffer that has a kernel."""
        for buffers in self._buffers:
            if self._has_kernel(buffers, kind, width):
                return self._base.ggml_backend_alloc_ctx_tensors_from_buft(held, buffers)
        return self._base.ggml_backend_alloc_ctx_tensors(held, self._backend)

    def _has_kernel(self, buffers: Any, kind: str, width: int) -> bool:
        base = self._base
        context = base.ggml_init(_Params(1 << 16, None, True))
        matrix = base.ggml_new_tensor_2d(context, TYPES[kind], width, _PIECE)
        buffer = base.ggml_backend_alloc_ctx_tensors_from_buft(context, buffers)
        if not buffer:
            base.ggml_free(context)
            return False
        inputs = base.ggml_new_tensor_2d(context, _F32, width, 1)
        product = base.ggml_mul_mat(context, matrix, inputs)
        found = bool(base.ggml_backend_dev_supports_op(self._device, product))
        base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)
        return found

    def _products(self, matrices: Sequence[Any], width: int, rows: int) -> float:
        base, count = self._base, len(matrices)
        size = base.ggml_tensor_overhead() * (count + 4)
        size += base.ggml_graph_overhead_custom(count + 4, False)
        context = base.ggml_init(_Params(size, None, True))
        inputs = base.ggml_new_tensor_2d(context, _F32, width, rows)
        graph = base.ggml_new_graph_custom(context, count + 4, False)
        for matrix in matrices:
            base.ggml_build_forward_expand(graph, base.ggml_mul_mat(context, matrix, inputs))
        buffer = base.ggml_backend_alloc_ctx_tensors(context, self._backend)
        values = np.random.default_rng(0).standard_normal((rows, width), np.float32)
        base.ggml_backend_tensor_set(inputs, values.ctypes.data, 0, values.nbytes)
        laps: list[float] = []
        while len(laps) < _LAPS or sum(laps) < _LEAST_S:
            began = time.perf_counter()
            base.ggml_backend_graph_compute(self._backend, graph)
            laps.append(time.perf_counter() - began)
        base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)
        return min(laps) / count


def _weights(kind: str, shape: Shape) -> Any:
    """A matrix in that type."""
    width, height = shape
    piece = np.random.default_rng(0).standard_normal((_PIECE, width), np.float32) * 0.05
    made = packed(piece, kind, np.ones(width, np.float32))
    return np.tile(made, math.ceil(height / _PIECE))[: made.size // _PIECE * height].copy()


def _declare(base: Any) -> None:
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    wide = ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_init": (pointer, [_Params]),
        "ggml_free": (None, [pointer]),
        "ggml_tensor_overhead": (size, []),
        "ggml_graph_overhead_custom": (size, [size, ctypes.c_bool]),
        "ggml_new_graph_custom": (pointer, [pointer, size, ctypes.c_bool]),
        "ggml_new_tensor_2d": (pointer, [pointer, number, wide, wide]),
        "ggml_mul_mat": (pointer, [pointer] * 3),
        "ggml_build_forward_expand": (None, [pointer] * 2),
        "ggml_backend_alloc_ctx_tensors": (pointer, [pointer] * 2),
        "ggml_backend_alloc_ctx_tensors_from_buft": (pointer, [pointer] * 2),
        "ggml_backend_buffer_free": (None, [pointer]),
        "ggml_backend_tensor_set": (None, [pointer, pointer, size, size]),
        "ggml_backend_graph_compute": (number, [pointer] * 2),
        "ggml_backend_dev_supports_op": (ctypes.c_bool, [pointer] * 2),
        "ggml_backend_reg_dev_get": (pointer, [pointer, size]),
        "ggml_backend_reg_get_proc_address": (pointer, [pointer, ctypes.c_char_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(base, name)
        function.restype, function.argtypes = result, arguments
