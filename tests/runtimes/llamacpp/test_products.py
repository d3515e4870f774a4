"""Products of many rows, by whichever kernel this processor has for them, against single rows."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtimes.machine.hardware import detect
from runtimes.machine.installed import find_installed

Floats = npt.NDArray[np.float32]

_Q4_0, _Q8_0, _Q4_K = 2, 8, 12  # enum ggml_type
_COUNTS, _ALONE = (5, 6, 7, 8, 9, 13, 64), 13


class _Params(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    )  # fmt: skip


class Ggml:
    """As much of ggml's interface as a product needs."""

    def __init__(self) -> None:
        installed = find_installed("llamacpp")
        assert installed
        folder = Path(installed.package) / "lib"
        named = {
            part: next(one for one in sorted(folder.iterdir()) if part in one.name)
            for part in ("ggml-base", "ggml-cpu")
        }
        self._base, self._cpu = (ctypes.CDLL(str(path)) for path in named.values())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        library = self._cpu if name.startswith("backend_cpu") else self._base
        function = getattr(library, f"ggml_{name}")
        function.restype = ctypes.c_void_p
        return lambda *given: ctypes.c_void_p(function(*given))

    def quantized(self, kind: int, weights: Floats) -> bytes:
        rows, columns = weights.shape
        size = self._base.ggml_row_size
        size.restype = ctypes.c_size_t
        to = ctypes.create_string_buffer(size(kind, ctypes.c_int64(columns)) * rows)
        numbers = (ctypes.c_int64(one) for one in (0, rows, columns))
        self.quantize_chunk(kind, ctypes.c_void_p(weights.ctypes.data), to, *numbers, None)
        return to.raw

    def repacking(self) -> ctypes.c_void_p | None:
        """The type of buffer in which weights are repacked."""
        registry = self.backend_cpu_reg()
        device = self.backend_reg_dev_get(registry, ctypes.c_size_t(0))
        found = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        list_of = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
        types = list_of(found.value)(device)
        name = self._base.ggml_backend_buft_name
        name.restype = ctypes.c_char_p
        for one in itertools.takewhile(bool, types or ()):
            if name(ctypes.c_void_p(one)) == b"CPU_REPACK":
                return ctypes.c_void_p(one)
        return None

    def multiply(
        self, kind: int, packed: bytes, buffers: ctypes.c_void_p, columns: int, x: Floats
    ) -> Floats:
        """Rows of ``x`` times the weights, ``columns`` of ``x.shape[1]``."""
        backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(backend, 2)
        contexts = [self.init(_Params(1 << 20, None, True)) for _ in range(2)]
        number = ctypes.c_int64
        weights = self.new_tensor_2d(contexts[0], kind, number(x.shape[1]), number(columns))
        held = [self.backend_alloc_ctx_tensors_from_buft(contexts[0], buffers)]
        size = ctypes.c_size_t
        self.backend_tensor_set(weights, packed, size(0), size(len(packed)))
        rows = self.new_tensor_2d(contexts[1], 0, number(x.shape[1]), number(x.shape[0]))
        product = self.mul_mat(contexts[1], weights, rows)
        graph = self.new_graph(contexts[1])
        self.build_forward_expand(graph, product)
        held.append(self.backend_alloc_ctx_tensors(contexts[1], backend))
        given = ctypes.c_void_p(x.ctypes.data)
        self.backend_tensor_set(rows, given, size(0), size(x.nbytes))
        self.backend_graph_compute(backend, graph)
        found = np.empty((len(x), columns), np.float32)
        to = ctypes.c_void_p(found.ctypes.data)
        self.backend_tensor_get(product, to, size(0), size(found.nbytes))
        for buffer in held:
            self.backend_buffer_free(buffer)
        for context in contexts:
            self.free(context)
        self.backend_free(backend)
        return found


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


@pytest.mark.parametrize("columns", [32, 64, 72])
@pytest.mark.parametrize(
    ("kind", "repacked", "length"),
    [
        *((_Q8_0, False, length) for length in (32, 512, 1184)),
        *((_Q4_0, True, length) for length in (32, 512, 1184)),
        *((_Q4_K, True, length) for length in (256, 1280)),
    ],
)
def test_many_rows_are_each_what_one_row_is(
    ggml: Ggml, kind: int, repacked: bool, length: int, columns: int
) -> None:
    buffers = ggml.repacking() if repacked else ggml.backend_cpu_buffer_type()
    if buffers is None:
        pytest.skip("this build of llama.cpp repacks nothing")
    dice = np.random.default_rng(length + columns)
    weights = dice.normal(size=(columns, length)).astype(np.float32)
    x = dice.normal(size=(max(_COUNTS), length)).astype(np.float32)
    x[:, ::37] *= 30  # values that the others of their block are small beside
    packed = ggml.quantized(kind, weights)
    rows = (x[number : number + 1] for number in range(_ALONE))
    alone = np.concatenate([ggml.multiply(kind, packed, buffers, columns, row) for row in rows])
    exact = (x @ weights.T)[:_ALONE]
    assert np.corrcoef(alone.ravel(), exact.ravel())[0, 1] > 0.99
    close = 2e-6 * (np.abs(x) @ np.abs(weights).T)
    same = []
    for count in _COUNTS:
        found = ggml.multiply(kind, packed, buffers, columns, x[:count])
        both = min(count, _ALONE)
        assert (np.abs(found[:both] - alone[:both]) <= close[:both]).all(), count
        same.append(found[:6])
    if columns % 32 == 0 and "avx512-vnni" in detect().instruction_sets:
        # From six rows on, a row does not depend on how many there are; in Q8_0 of any number.
        assert all(np.array_equal(one, same[1]) for one in same[1:])
        assert kind != _Q8_0 or np.array_equal(same[1], alone[:6])
