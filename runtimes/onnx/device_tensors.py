"""Tensors on a device: how they are allocated, copied, and bound to a graph, whole or in part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError
from runtimes.onnx.device import Target, open_session
from runtimes.onnx.device_graphs import copy, picked, same, zeros
from runtimes.onnx.graph import Graph, bind_input, run
from runtimes.runner import Logits, TopKLogits

LIKELIEST = 64  # tokens of a row, where not all are wanted; as many as llama.cpp is asked for


@dataclass(frozen=True, slots=True)
class View:
    """A tensor on a device, or those of its rows that begin ``offset`` bytes behind its begin."""

    tensor: Any
    target: Target
    dtype: Any
    shape: tuple[int, ...]
    offset: int | None = None  # None: all of it

    def rows(self, low: int, high: int) -> "View":
        """From row ``low`` up to ``high``, on a device that has addresses."""
        row = int(np.prod(self.shape[1:])) * np.dtype(self.dtype).itemsize
        return replace(self, shape=(high - low, *self.shape[1:]), offset=low * row)

    def bind_input(self, binding: Any, name: str) -> None:
        """Have a graph read it."""
        if self.offset is None:
            binding.bind_ortvalue_input(name, self.tensor)
        else:
            binding.bind_input(name, *self._place(self.offset))

    def bind_output(self, binding: Any, name: str) -> None:
        """Have a graph write it."""
        if self.offset is None:
            binding.bind_ortvalue_output(name, self.tensor)
        else:
            binding.bind_output(name, *self._place(self.offset))

    def _place(self, offset: int) -> tuple[Any, ...]:
        where, at = self.target, self.tensor.data_ptr() + offset
        return where.provider.memory, where.index, self.dtype, self.shape, at


class Mover:
    """Allocates and copies tensors where a graph runs."""

    def __init__(self, graph: Graph, target: Target, vocab_size: int) -> None:
        """Raises ModelError."""
        import onnxruntime as ort

        self._target, self._vocab_size = target, vocab_size
        kinds = {np.dtype(tensor.dtype) for tensor in graph.cache}
        if len(kinds) != 1:
            raise ModelError("keys and values of several types cannot be on a device")
        self._dtype = kinds.pop()
        nbytes = self._dtype.itemsize
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # all that these graphs do is done on the device

        def opened(content: bytes) -> Any:
            return open_session(content, options, target)

        self._zeros = opened(zeros(nbytes))
        self._copy = opened(copy(len(graph.cache), nbytes))
        self._same = opened(same(nbytes))
        nbytes = np.dtype(graph.logits_dtype).itemsize
        self._picked = opened(picked(vocab_size, nbytes))
        self.finds_likeliest = vocab_size > LIKELIEST
        if self.finds_likeliest:
            self._likeliest = opened(picked(vocab_size, nbytes, LIKELIEST))

    def zeros(self, shape: tuple[int, ...]) -> View:
        """A tensor of zeros for keys or values. Raises OutOfMemoryError."""
        sizes, binding = np.array(shape, np.int64), self._zeros.io_binding()
        bind_input(binding, "shape", sizes)
        self.bind_new(binding, "made")
        run(self._zeros, binding)
        return View(binding.get_outputs()[0], self._target, self._dtype, shape)

    def placed(self, matrix: npt.NDArray[Any]) -> Any:
        """A copy of a matrix, with elements as keys and values have. Raises OutOfMemoryError."""
        binding = self._same.io_binding()
        bind_input(binding, "from", matrix)
        self.bind_new(binding, "to")
        run(self._same, binding)
        return binding.get_outputs()[0]

    def bind_new(self, binding: Any, name: str) -> None:
        """Have a graph allocate this output on the device."""
        binding.bind_output(name, self._target.provider.memory, self._target.index)

    def copy(
        self, source: Sequence[View | npt.NDArray[Any]], target: Sequence[View], tokens: int
    ) -> None:
        """Fill tensors of the device with those of one slot."""
        end, binding = np.array([tokens]), self._copying(source)
        bind_input(binding, "tokens", end)
        for n, value in enumerate(target):
            value.bind_output(binding, f"to.{n}")
        run(self._copy, binding)

    def fetch(self, source: Sequence[View], tokens: int) -> list[npt.NDArray[Any]]:
        """The first tokens of a slot as arrays."""
        end, binding = np.array([tokens]), self._copying(source)
        bind_input(binding, "tokens", end)
        for n in range(len(source)):
            binding.bind_output(f"to.{n}", "cpu")
        run(self._copy, binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _copying(self, source: Sequence[View | npt.NDArray[Any]]) -> Any:
        binding = self._copy.io_binding()
        for n, value in enumerate(source):
            if isinstance(value, np.ndarray):
                bind_input(binding, f"from.{n}", value)
            else:
                value.bind_input(binding, f"from.{n}")
        return binding

    def picked(self, logits: Any, rows: Sequence[int]) -> Logits:
        """Rows of logits [b, n, vocab], counted from 0 to b * n, as an array [rows, vocab]."""
        found = self._picking(self._picked, logits, rows, "picked")
        values: Logits = found[0].astype(np.float32, copy=False)
        return values

    def likeliest(self, logits: Any, rows: Sequence[int]) -> TopKLogits:
        """The same, of each row the largest ones only."""
        values, ids = self._picking(self._likeliest, logits, rows, "values", "ids")
        return TopKLogits(ids.astype(np.int32), values.astype(np.float32, copy=False))

    @staticmethod
    def _picking(session: Any, logits: Any, rows: Sequence[int], *names: str) -> list[Any]:
        chosen, binding = np.array(rows), session.io_binding()
        binding.bind_ortvalue_input("logits", logits)
        bind_input(binding, "rows", chosen)
        for name in names:
            binding.bind_output(name, "cpu")
        run(session, binding)
        return [value.numpy() for value in binding.get_outputs()]
