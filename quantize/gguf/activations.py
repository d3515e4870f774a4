"""What llama.cpp multiplies each weight tensor with, seen through its evaluation callback.

The counterpart of ``IMatrixCollector::collect_imatrix`` of llama.cpp's tools/imatrix/imatrix.cpp.
Runs in a child process.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.gguf.imatrixfile import ImatrixEntry
from runtimes.errors import ModelError
from runtimes.llamacpp.native import library

_F32 = 0  # ggml_type
_DENSE, _EXPERTS = b"MUL_MAT", b"MUL_MAT_ID"
_OBJECT_BYTES = 32  # struct ggml_object of ggml.h, which precedes every tensor


class _Tensor(ctypes.Structure):
    """``struct ggml_tensor`` of ggml/include/ggml.h; ``_check_layout`` compares it with the
    library's own."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]


class Collector:
    """Sums up the squares of what goes into each weight tensor of the layers.

    ``callback`` is the context parameter ``cb_eval``. What goes wrong inside it stops the step;
    ``raise_error`` tells.
    """

    def __init__(self) -> None:
        lib = library()
        self.callback = lib.ggml_backend_sched_eval_callback(self._call)
        self._ggml = _functions()
        self._ops: dict[int, bytes] = {}
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, npt.NDArray[np.float64]] = {}
        self._error: Exception | None = None

    def entries(self) -> dict[str, ImatrixEntry]:
        """What was seen, by the name of the weight tensor. Raises ModelError for infinities."""
        found = {}
        for name, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise ModelError(f"the input of {name} is not finite: the model is damaged")
            found[name] = ImatrixEntry(
                sums.astype(np.float32), self._counts[name].astype(np.float32)
            )
        return found

    def raise_error(self) -> None:
        """Raise what went wrong in the callback, if anything did."""
        if self._error is not None:
            raise self._error

    def _call(self, address: int, ask: bool, _user: Any) -> bool:
        # ctypes would print an exception and go on.
        try:
            tensor = _Tensor.from_address(address)
            if ask:
                return self._wants(tensor, address)
            self._collect(tensor)
            return True
        except Exception as error:
            self._error = error
            return False

    def _wants(self, tensor: _Tensor, address: int) -> bool:
        if tensor.op not in self._ops:
            _check_layout(self._ggml, tensor, address)
            self._ops[tensor.op] = self._ggml.ggml_op_name(tensor.op)
        if self._ops[tensor.op] not in (_DENSE, _EXPERTS):
            return False
        weight, inputs = tensor.src[0].contents, tensor.src[1].contents
        return bool(weight.name.startswith(b"blk.")) and inputs.type == _F32

    def _collect(self, tensor: _Tensor) -> None:
        weight, inputs = tensor.src[0].contents, tensor.src[1].contents
        squares = np.square(self._values(inputs, np.float32), dtype=np.float64)
        matrices, width = weight.ne[2] * weight.ne[3], inputs.ne[0]
        name = weight.name.decode()
        sums = self._sums.setdefault(name, np.zeros((matrices, width)))
        counts = self._counts.setdefault(name, np.zeros(matrices))
        if self._ops[tensor.op] == _EXPERTS:
            # [1, tokens, slots, width] goes through the experts [tokens, used]; with fewer slots
            # than experts used, they share.
            experts = self._values(tensor.src[2].contents, np.int32)[0, 0]
            for i in range(experts.shape[1]):
                np.add.at(sums, experts[:, i], squares[0, :, i % squares.shape[2]])
                np.add.at(counts, experts[:, i], 1)
            return
        # Rows of all matrices' inputs; where the weight is one matrix, all rows are its.
        for i3 in range(squares.shape[0]):
            for i2 in range(squares.shape[1]):
                matrix = i3 % weight.ne[3] * weight.ne[2] + i2 % weight.ne[2]
                sums[matrix] += squares[i3, i2].sum(axis=0)
                counts[matrix] += squares.shape[2]

    def _values(self, tensor: _Tensor, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A copy of the tensor's values, in NumPy's order of dimensions (the slowest first)."""
        pointer = ctypes.byref(tensor)
        buffer = np.empty(self._ggml.ggml_nbytes(pointer), np.uint8)
        self._ggml.ggml_backend_tensor_get(pointer, buffer.ctypes.data, 0, buffer.nbytes)
        return np.ndarray(
            tuple(tensor.ne)[::-1], dtype, buffer=buffer.data, strides=tuple(tensor.nb)[::-1]
        )


def _functions() -> Any:
    """The functions on tensors of the ggml library that llama.cpp itself uses."""
    from llama_cpp import _ggml
    from llama_cpp._ctypes_extensions import load_shared_library

    base = load_shared_library("ggml-base", _ggml.libggml_base_path)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_op_name": (ctypes.c_char_p, [ctypes.c_int]),
        "ggml_get_name": (ctypes.c_void_p, [ctypes.c_void_p]),
        "ggml_get_data": (ctypes.c_void_p, [ctypes.c_void_p]),
        "ggml_tensor_overhead": (ctypes.c_size_t, []),
        "ggml_nbytes": (ctypes.c_size_t, [ctypes.c_void_p]),
        "ggml_backend_tensor_get": (None, [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(base, name)
        function.restype, function.argtypes = result, arguments
    return base


def _check_layout(ggml: Any, tensor: _Tensor, address: int) -> None:
    """Raise ModelError unless the installed library's tensors are laid out as ours."""
    ours = (
        _OBJECT_BYTES + ctypes.sizeof(_Tensor),
        address + _Tensor.name.offset,
        tensor.data,
    )
    theirs = ggml.ggml_tensor_overhead(), ggml.ggml_get_name(address), ggml.ggml_get_data(address)
    if ours != theirs:
        raise ModelError(
            "the installed llama.cpp is of another version than importance matrices are computed"
            " with here; compute one with its llama-imatrix tool and give that file"
        )
