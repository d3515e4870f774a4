"""ggml's own interface, for tests of a kernel alone."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.machine.installed import find_installed

Floats = npt.NDArray[np.float32]


class _Params(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor: ``data`` of a type of ggml's, row after row, where ``buffers`` says."""

    kind: int
    shape: tuple[int, ...]
    data: bytes
    buffers: ctypes.c_void_p | None = None


class Ggml:
    """As much of ggml's interface as one operation on the processor needs."""

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

    def compute(
        self,
        operation: Callable[..., ctypes.c_void_p],
        shape: tuple[int, ...],
        *given: Given,
        threads: int = 2,
    ) -> Floats:
        """What ``operation`` makes of a context and of ``given``."""
        backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(backend, threads)
        contexts, held, tensors = [], [], []
        size = ctypes.c_size_t
        for one in given:
            contexts.append(self.init(_Params(1 << 20, None, True)))
            sides = (ctypes.c_int64(side) for side in one.shape[::-1])
            new = getattr(self, f"new_tensor_{len(one.shape)}d")
            tensors.append(new(contexts[-1], one.kind, *sides))
            buffers = one.buffers or self.backend_cpu_buffer_type()
            held.append(self.backend_alloc_ctx_tensors_from_buft(contexts[-1], buffers))
            self.backend_tensor_set(tensors[-1], one.data, size(0), size(len(one.data)))
        contexts.append(self.init(_Params(1 << 20, None, True)))
        result = operation(contexts[-1], *tensors)
        graph = self.new_graph(contexts[-1])
        self.build_forward_expand(graph, result)
        held.append(self.backend_alloc_ctx_tensors(contexts[-1], backend))
        self.backend_graph_compute(backend, graph)
        found = np.empty(shape, np.float32)
        to = ctypes.c_void_p(found.ctypes.data)
        self.backend_tensor_get(result, to, size(0), size(found.nbytes))
        for buffer in held:
            self.backend_buffer_free(buffer)
        for context in contexts:
            self.free(context)
        self.backend_free(backend)
        return found
