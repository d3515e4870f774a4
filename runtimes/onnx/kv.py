"""The slot cache of a graph, allocated once."""

from abc import abstractmethod
from collections.abc import Iterable

import numpy as np

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.onnx.graph import Array, Graph
from runtimes.runner import KvSlots, SavedKv


class Slots(KvSlots):
    """Slots that keep every token's keys and values: where these lie is what differs."""

    def __init__(self, graph: Graph, slots: int, context: int) -> None:
        super().__init__(slots, context)
        self._cache = graph.cache
        self.bytes_per_token = sum(tensor.nbytes for tensor in graph.cache)

    def hold(self, slot: int, length: int) -> None:
        """Note that the slot holds its first ``length`` tokens, whatever it held before."""
        self.lengths[slot] = length

    def trim(self, slot: int, length: int) -> None:
        """See ``KvSlots.trim``."""
        self.lengths[slot] = min(self.lengths[slot], length)

    @abstractmethod
    def _copy(self, source: int, target: int, length: int) -> None:
        """Copy what another slot holds."""

    @abstractmethod
    def _load(self, slot: int, data: SavedKv, length: int) -> None:
        """Take what ``save`` gave, which is of the right size."""

    @staticmethod
    def _fill(parts: Iterable[Array], data: SavedKv) -> None:
        """Put what ``save`` gave into each layer's keys and values [kv heads, tokens, size]."""
        at, payload = 0, memoryview(data)
        for part in parts:
            end = at + part.nbytes
            part[:] = np.frombuffer(payload[at:end], part.dtype).reshape(part.shape)
            at = end

    @abstractmethod
    def close(self) -> None:
        """Let go of the memory."""

    def copy(self, source: int, target: int, length: int) -> None:
        """See ``KvSlots.copy``; raises ModelError when the source holds fewer tokens."""
        self.require_held(source, length)
        self._copy(source, target, length)
        self.hold(target, length)

    def load(self, slot: int, data: SavedKv, length: int) -> None:
        """See ``KvSlots.load``."""
        self.trim(slot, 0)
        self.require_room(length)
        if len(data) != length * self.bytes_per_token:
            raise ModelError(f"{len(data)} bytes are not {length} tokens of this model")
        self._load(slot, data, length)
        self.hold(slot, length)


class SlotCache(Slots):
    """Keys and values in the processor's memory.

    ``arrays`` has keys and values of every layer, each [slots, kv heads, context, head size];
    ``mask`` [slots, context] is 1 for each token that a slot holds; ``changes`` counts what was
    done to slots other than by steps.
    """

    def __init__(self, graph: Graph, slots: int, context: int) -> None:
        """Raises OutOfMemoryError when the cache cannot be allocated."""
        super().__init__(graph, slots, context)
        try:
            self.arrays: list[Array] = [
                np.zeros((slots, t.kv_heads, context, t.head_dim), t.dtype) for t in graph.cache
            ]
        except MemoryError as error:
            raise OutOfMemoryError(
                f"no memory for the cache of {slots} slots x {context} tokens; "
                "ask for fewer slots or a smaller context"
            ) from error
        self.mask = np.zeros((slots, context), graph.index_dtype)
        self.changes = 0

    def hold(self, slot: int, length: int) -> None:
        """See ``Slots.hold``."""
        self.mask[slot, :length] = 1
        self.mask[slot, length:] = 0
        self.lengths[slot] = length

    def trim(self, slot: int, length: int) -> None:
        """See ``KvSlots.trim``."""
        self.changes += self.lengths[slot] > length
        self.mask[slot, length:] = 0
        super().trim(slot, length)

    def _copy(self, source: int, target: int, length: int) -> None:
        self.changes += 1
        if source != target:
            for array in self.arrays:
                array[target, :, :length] = array[source, :, :length]

    def swap(self, first: int, second: int) -> None:
        """See ``KvSlots.swap``."""
        lengths = self.lengths[second], self.lengths[first]
        most = max(lengths)
        for array in self.arrays:
            array[[first, second], :, :most] = array[[second, first], :, :most]
        self.changes += 1
        self.hold(first, lengths[0])
        self.hold(second, lengths[1])

    def save(self, slot: int) -> bytes:
        """See ``KvSlots.save``: each layer's keys and values, head after head."""
        length = self.lengths[slot]
        # Join copies each piece once, into memory of the final size.
        return b"".join(head.data for array in self.arrays for head in array[slot, :, :length])

    def _load(self, slot: int, data: SavedKv, length: int) -> None:
        self.changes += 1
        self._fill((array[slot, :, :length] for array in self.arrays), data)

    def close(self) -> None:
        """See ``Slots.close``."""
        self.arrays.clear()
