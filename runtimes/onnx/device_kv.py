"""The slot cache on a device."""

import numpy as np

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.onnx.device_tensors import Mover, View
from runtimes.onnx.graph import CacheTensor, Graph
from runtimes.onnx.kv import Slots
from runtimes.runner import SavedKv


class DeviceCache(Slots):
    """Keys and values on a device, in places of [kv heads, context, head size] a layer.

    ``together`` they are one tensor a layer, a place for each slot in order and one more to swap
    by. Else each place has tensors of its own, and ``place`` says where a slot's tokens are: not
    every device can be given a part of a tensor.
    """

    def __init__(
        self, graph: Graph, mover: Mover, slots: int, context: int, *, together: bool
    ) -> None:
        """Raises OutOfMemoryError when the cache cannot be allocated, ModelError when the device
        lacks the cache's type."""
        tensors = graph.cache
        per_token = sum(t.kv_heads * t.head_dim * np.dtype(t.dtype).itemsize for t in tensors)
        super().__init__(slots, context, per_token)
        self.mover, self.together, self._tensors = mover, together, tensors
        if tensors:  # what fails for one token is not for lack of room
            mover.zeros((1, tensors[0].kv_heads, 1, tensors[0].head_dim))
        rows, times = (slots + 1, 1) if together else (1, slots)
        shapes = [self._shape(tensor, rows) for tensor in tensors]
        try:
            self._views = [[mover.zeros(shape) for shape in shapes] for _ in range(times)]
        except ModelError as error:  # a device says in words of its own that it has no room
            raise OutOfMemoryError(
                f"no room on the device for the cache of {slots} slots x {context} tokens"
                f" ({error}); ask for fewer slots or a smaller context"
            ) from error
        self.place = list(range(slots))

    def _shape(self, tensor: CacheTensor, rows: int = 1) -> tuple[int, int, int, int]:
        return rows, tensor.kv_heads, self.context, tensor.head_dim

    def places(self, low: int, high: int) -> list[View]:
        """Each layer's keys and values in these places; of one place only if not ``together``."""
        if self.together:
            return [whole.rows(low, high) for whole in self._views[0]]
        return self._views[low]

    def _values(self, slot: int) -> list[View]:
        place = self.place[slot]
        return self.places(place, place + 1)

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
        """See ``KvSlots.swap``; nothing is copied where places need no order."""
        lengths = self.lengths
        lengths[first], lengths[second] = lengths[second], lengths[first]
        if not self.together:
            self.place[first], self.place[second] = self.place[second], self.place[first]
            return
        spare = self.places(len(lengths), len(lengths) + 1)
        one, other = self._values(first), self._values(second)
        for source, target in ((one, spare), (other, one), (spare, other)):
            self.mover.copy(source, target, self.context)

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
        self._views.clear()
