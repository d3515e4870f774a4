"""The slot cache on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.onnx.device import Target, open_session
from runtimes.onnx.device_graphs import copy, last, zeros
from runtimes.onnx.graph import CacheTensor, Graph, bind_input, run
from runtimes.onnx.kv import Slots
from runtimes.runner import Logits, SavedKv


class Mover:
    """Allocates and copies tensors where a graph runs."""

    def __init__(self, graph: Graph, target: Target, vocab_size: int) -> None:
        """Raises ModelError."""
        import onnxruntime as ort

        self._target = target
        kinds = {np.dtype(tensor.dtype) for tensor in graph.cache}
        if len(kinds) != 1:
            raise ModelError("keys and values of several types cannot be on a device")
        nbytes = kinds.pop().itemsize
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1  # all that these graphs do is done on the device

        def opened(content: bytes) -> Any:
            return open_session(content, options, target)

        self._zeros = opened(zeros(nbytes))
        self._copy = opened(copy(len(graph.cache), nbytes))
        self._last = opened(last(vocab_size, np.dtype(graph.logits_dtype).itemsize))

    def zeros(self, shape: Sequence[int]) -> Any:
        """A tensor of zeros for keys or values. Raises OutOfMemoryError."""
        sizes, binding = np.array(shape, np.int64), self._zeros.io_binding()
        bind_input(binding, "shape", sizes)
        self.bind_new(binding, "made")
        run(self._zeros, binding)
        return binding.get_outputs()[0]

    def bind_new(self, binding: Any, name: str) -> None:
        """Have a graph allocate this output on the device."""
        binding.bind_output(name, self._target.provider.memory, self._target.index)

    def copy(self, source: Sequence[Any], target: Sequence[Any], tokens: int) -> None:
        """Fill tensors of the device with those of one slot, there or arrays."""
        end, binding = np.array([tokens]), self._copying(source)
        bind_input(binding, "tokens", end)
        for n, value in enumerate(target):
            binding.bind_ortvalue_output(f"to.{n}", value)
        run(self._copy, binding)

    def fetch(self, source: Sequence[Any], tokens: int) -> list[npt.NDArray[Any]]:
        """The first tokens of a slot as arrays."""
        end, binding = np.array([tokens]), self._copying(source)
        bind_input(binding, "tokens", end)
        for n in range(len(source)):
            binding.bind_output(f"to.{n}", "cpu")
        run(self._copy, binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _copying(self, source: Sequence[Any]) -> Any:
        binding = self._copy.io_binding()
        for n, value in enumerate(source):
            if isinstance(value, np.ndarray):
                bind_input(binding, f"from.{n}", value)
            else:
                binding.bind_ortvalue_input(f"from.{n}", value)
        return binding

    def last(self, logits: Any, rows: int) -> Logits:
        """The last rows of logits [1, n, vocab], as an array [rows, vocab]."""
        first, binding = np.array([-rows]), self._last.io_binding()
        binding.bind_ortvalue_input("logits", logits)
        bind_input(binding, "first", first)
        binding.bind_output("last", "cpu")
        run(self._last, binding)
        found: Logits = binding.get_outputs()[0].numpy()[0].astype(np.float32, copy=False)
        return found


class DeviceCache(Slots):
    """Keys and values on a device.

    ``places`` has those of every layer for each place, each [1, kv heads, context, head size]: a
    graph cannot be given a part of a tensor there. ``place`` says where a slot's tokens are.
    """

    def __init__(self, graph: Graph, mover: Mover, slots: int, context: int) -> None:
        """Raises OutOfMemoryError when the cache cannot be allocated, ModelError when the device
        lacks the cache's type."""
        tensors = graph.cache
        per_token = sum(t.kv_heads * t.head_dim * np.dtype(t.dtype).itemsize for t in tensors)
        super().__init__(slots, context, per_token)
        self.mover, self._tensors = mover, tensors
        shapes = [self._shape(tensor) for tensor in tensors]
        if tensors:  # what fails for one token is not for lack of room
            mover.zeros((1, tensors[0].kv_heads, 1, tensors[0].head_dim))
        try:
            self.places = [[mover.zeros(shape) for shape in shapes] for _ in range(slots)]
        except ModelError as error:  # a device says in words of its own that it has no room
            raise OutOfMemoryError(
                f"no room on the device for the cache of {slots} slots x {context} tokens"
                f" ({error}); ask for fewer slots or a smaller context"
            ) from error
        self.place = list(range(slots))

    def _shape(self, tensor: CacheTensor) -> tuple[int, int, int, int]:
        return 1, tensor.kv_heads, self.context, tensor.head_dim

    def _values(self, slot: int) -> list[Any]:
        return self.places[self.place[slot]]

    def hold(self, slot: int, length: int) -> None:
        """See ``Slots.hold``."""
        self.lengths[slot] = length

    def trim(self, slot: int, length: int) -> None:
        """See ``KvSlots.trim``."""
        self.lengths[slot] = min(self.lengths[slot], length)

    def _copy(self, source: int, target: int, length: int) -> None:
        if source != target:
            self.mover.copy(self._values(source), self._values(target), self.context)

    def swap(self, first: int, second: int) -> None:
        """See ``KvSlots.swap``; nothing is copied."""
        for kept in (self.place, self.lengths):
            kept[first], kept[second] = kept[second], kept[first]

    def save(self, slot: int) -> bytes:
        """See ``Slots.save``; the same bytes as the processor's."""
        length = self.lengths[slot]
        rows = self.mover.fetch(self._values(slot), length) if length else []
        return b"".join(row.tobytes() for row in rows)

    def _load(self, slot: int, data: SavedKv, length: int) -> None:
        at, payload, rows = 0, memoryview(data), []
        for tensor in self._tensors:
            row = np.zeros(self._shape(tensor), tensor.dtype)
            part = row[0, :, :length]
            end = at + part.nbytes
            part[:] = np.frombuffer(payload[at:end], tensor.dtype).reshape(part.shape)
            rows.append(row)
            at = end
        self.mover.copy(rows, self._values(slot), self.context)

    def close(self) -> None:
        """See ``Slots.close``."""
        self.places.clear()
