"""Ggml's own functions: rounding of weights, and matrix products on this processor by type and
shape, to be timed. Runs in a child process.

The products of a model's step are computed one after another, each with weights of its own, in the
buffers that llama.cpp itself would put them into (`make_cpu_buft_list` and `weight_buft_supported`
of src/llama-model-loader.cpp): some types are laid out anew there for faster kernels.
"""

import contextlib
import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from quantize.arrays import Bytes, Floats
from quantize.gguf.quantize import TYPES
from runtimes.machine.cpu import allowed_cpus, available_cores
from runtimes.models.gguf import TENSOR_TYPES

_F32, _F16 = 0, 1


def rounded(rows: Floats, kind: str, means: Floats | None = None) -> Floats:
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


def packed(rows: Floats, kind: str, means: Floats | None = None) -> Bytes:
    """``rows`` [rows, width] in that type, as a file has them; as `rounded` otherwise."""
    number = TYPES[kind]
    if number == _F16:
        return rows.astype(np.float16).view(np.uint8).ravel()
    _, block, size = TENSOR_TYPES[number]
    rows = np.ascontiguousarray(rows, np.float32)
    column = None if means is None else np.ascontiguousarray(means, np.float32)
    out = np.empty(rows.size // block * size, np.uint8)
    pointer = None if column is None else column.ctypes.data
    library_of().ggml_quantize_chunk(
        *(number, rows.ctypes.data, out.ctypes.data), *(0, *rows.shape, pointer)
    )
    return out


def unpacked(rows: Bytes, kind: str, width: int) -> Floats:
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


class _Params(ctypes.Structure):
    """``struct ggml_init_params`` of ggml.h."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


_POINTER, _NUMBER, _WIDE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_KINDS = {
    "none": None,
    "address": _POINTER,
    "text": ctypes.c_char_p,
    "size": ctypes.c_size_t,
    "int": _NUMBER,
    "long": _WIDE,
    "bool": ctypes.c_bool,
    "params": _Params,
    "traits": ctypes.POINTER(_Traits),
}
# Functions with the kinds of their results and arguments, by the library that has them.
_SIGNATURES = {
    "ggml-cpu": """
        ggml_backend_cpu_init address
        ggml_backend_cpu_reg address
    """,
    "ggml-base": """
        ggml_init address params
        ggml_free none address
        ggml_nbytes size address
        ggml_op_name text int
        ggml_get_name address address
        ggml_get_data address address
        ggml_get_type_traits traits int
        ggml_quantize_chunk size int address address long long long address
        ggml_tensor_overhead size
        ggml_graph_overhead_custom size size bool
        ggml_new_graph_custom address address size bool
        ggml_new_tensor_2d address address int long long
        ggml_mul_mat address address address address
        ggml_build_forward_expand none address address
        ggml_backend_alloc_ctx_tensors address address address
        ggml_backend_alloc_ctx_tensors_from_buft address address address
        ggml_backend_buffer_free none address
        ggml_backend_tensor_get none address address size size
        ggml_backend_tensor_set none address address size size
        ggml_backend_graph_compute int address address
        ggml_backend_dev_supports_op bool address address
        ggml_backend_reg_dev_get address address size
        ggml_backend_reg_get_proc_address address address text
    """,
}


@functools.cache
def library_of(name: str = "ggml-base") -> Any:
    """One of the libraries of ggml that llama.cpp itself uses, its functions declared."""
    from llama_cpp import _ggml
    from llama_cpp._ctypes_extensions import load_shared_library

    library = load_shared_library(name, _ggml.libggml_base_path)
    for line in _SIGNATURES[name].split("\n"):
        if words := line.split():
            found = getattr(library, words[0])
            found.restype, *found.argtypes = (_KINDS[kind] for kind in words[1:])
    return library


@functools.cache
def _reader(number: int) -> Any:
    """Ggml's function from packed weights to floats: (packed, floats, count)."""
    kind = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _WIDE)
    return kind(library_of().ggml_get_type_traits(number).contents.to_float)


Shape = tuple[int, int]  # the length of a row, and rows

_PIECE = 32  # rows that are rounded; repeated, they fill a matrix


@contextlib.contextmanager
def products(
    kind: str, shape: Shape, rows: int, model_bytes: int
) -> Iterator[tuple[Callable[[], object], int]]:
    """A function that multiplies ``rows`` rows of inputs by as many matrices of that type and shape
    as a model of ``model_bytes`` has, and how many these are."""
    cpu, (width, height) = _cpu(), shape
    base, data = cpu.base, _weights(kind, shape)
    count = max(1, -(-model_bytes // data.nbytes))
    size = base.ggml_tensor_overhead() * (count + 4)
    with _context(size) as held, contextlib.ExitStack() as stack:
        matrices = [base.ggml_new_tensor_2d(held, TYPES[kind], width, height) for _ in range(count)]
        stack.callback(base.ggml_backend_buffer_free, cpu.allocate(held, kind, width))
        for matrix in matrices:
            base.ggml_backend_tensor_set(matrix, data.ctypes.data, 0, data.nbytes)
        size += base.ggml_graph_overhead_custom(count + 4, False)
        context = stack.enter_context(_context(size))
        inputs = base.ggml_new_tensor_2d(context, _F32, width, rows)
        graph = base.ggml_new_graph_custom(context, count + 4, False)
        for matrix in matrices:
            base.ggml_build_forward_expand(graph, base.ggml_mul_mat(context, matrix, inputs))
        buffer = base.ggml_backend_alloc_ctx_tensors(context, cpu.backend)
        stack.callback(base.ggml_backend_buffer_free, buffer)
        values = np.random.default_rng(0).standard_normal((rows, width), np.float32)
        base.ggml_backend_tensor_set(inputs, values.ctypes.data, 0, values.nbytes)
        yield functools.partial(base.ggml_backend_graph_compute, cpu.backend, graph), count


@contextlib.contextmanager
def _context(size: int) -> Iterator[Any]:
    """Room of ``size`` bytes for tensors' descriptions, without their data."""
    base = library_of()
    context = base.ggml_init(_Params(size, None, True))
    try:
        yield context
    finally:
        base.ggml_free(context)


class _Cpu:
    """ggml's processor."""

    def __init__(self) -> None:
        self.base, own = library_of(), library_of("ggml-cpu")
        register = own.ggml_backend_cpu_reg()
        self.backend = own.ggml_backend_cpu_init()
        self._device = self.base.ggml_backend_reg_dev_get(register, 0)
        address_of = functools.partial(self.base.ggml_backend_reg_get_proc_address, register)
        set_threads = ctypes.CFUNCTYPE(None, _POINTER, _NUMBER)
        set_threads(address_of(b"ggml_backend_set_n_threads"))(self.backend, available_cores())
        # Kinds of buffers in which weights of some types are laid out anew.
        self._buffers: list[Any] = []
        if address := address_of(b"ggml_backend_dev_get_extra_bufts"):
            kind = ctypes.CFUNCTYPE(ctypes.POINTER(_POINTER), _POINTER)
            self._buffers += itertools.takewhile(bool, kind(address)(self._device) or ())

    def allocate(self, held: Any, kind: str, width: int) -> Any:
        """Memory for the matrices of ``held``, in the first kind of buffer that has a kernel."""
        for buffers in self._buffers:
            if self._has_kernel(buffers, kind, width):
                return self.base.ggml_backend_alloc_ctx_tensors_from_buft(held, buffers)
        return self.base.ggml_backend_alloc_ctx_tensors(held, self.backend)

    def _has_kernel(self, buffers: Any, kind: str, width: int) -> bool:
        base = self.base
        with _context(1 << 16) as context:
            matrix = base.ggml_new_tensor_2d(context, TYPES[kind], width, _PIECE)
            buffer = base.ggml_backend_alloc_ctx_tensors_from_buft(context, buffers)
            if not buffer:
                return False
            inputs = base.ggml_new_tensor_2d(context, _F32, width, 1)
            product = base.ggml_mul_mat(context, matrix, inputs)
            found = bool(base.ggml_backend_dev_supports_op(self._device, product))
            base.ggml_backend_buffer_free(buffer)
            return found


_cpu = functools.cache(_Cpu)


def _weights(kind: str, shape: Shape) -> Any:
    """A matrix in that type."""
    width, height = shape
    piece = np.random.default_rng(0).standard_normal((_PIECE, width), np.float32) * 0.05
    made = packed(piece, kind, np.ones(width, np.float32))
    return np.tile(made, math.ceil(height / _PIECE))[: made.size // _PIECE * height].copy()
