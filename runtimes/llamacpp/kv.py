"""llama.cpp's keys and values as slots: slot i is sequence i.

llama.cpp aborts the process where its preconditions are not met, so they are checked here.
"""

import ctypes
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError
from runtimes.llamacpp.native import NativeBatch, library, recent_errors
from runtimes.runner import KvSlots, SavedKv, StepRow

# llama.cpp's serialised state of one sequence, for caches of another layout than its own.
#
# What ``llama_state_seq_get_data`` writes (``state_write`` in llama-kv-cache.cpp, and the ``_iswa``
# one, which writes two caches), native byte order::
#
#     u32 magic, i32 sequence
#     for each cache: u32 streams, and for each stream: u32 cells, and unless that is 0 a record:
#       for each cell: i32 position, u32 1, i32 sequence
#       u32 values are transposed, u32 layers
#       for each layer: i32 type, u64 bytes a cell, keys [cells, bytes]
#       then for each layer, unless the model keeps no values:
#         i32 type, u64 bytes a cell, values [cells, bytes]; or, transposed,
#         i32 type, u32 bytes an element, u32 elements, values [elements, cells, bytes]
#
# The number of streams is the slots of a split cache and 1 of a unified one; a sequence is in one
# of them. Recurrent states and the caches of a few architectures look otherwise.
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY of llama.h

_PREFIX = 8
_CELL = np.dtype([("position", "i4"), ("sequences", "u4"), ("sequence", "i4")])

Bytes = npt.NDArray[np.uint8]
_BYTES = ctypes.POINTER(ctypes.c_uint8)


def with_streams(state: Bytes, streams: int) -> Bytes:
    """Convert a state for a cache of ``streams`` streams; a state of another layout than
    this module knows as it is.
    """
    for has_values in (True, False):
        try:
            return _with_streams(state, streams, has_values)
        except (ValueError, struct.error):
            continue
    return state


def _with_streams(state: Bytes, streams: int, has_values: bool) -> Bytes:
    """Raises ValueError, or what ``struct`` does, for bytes that are not laid out as above."""
    pieces, at = [state[:_PREFIX]], _PREFIX
    while at < len(state):
        (count,) = struct.unpack_from("=I", state.data, at)
        at += 4
        record = np.zeros(4, np.uint8)  # no cells
        for _ in range(count):
            begin, at = at, _end(state, at, has_values)
            if at - begin > 4:
                if len(record) > 4:
                    raise ValueError("cells in two streams")
                record = state[begin:at]
        pieces += [np.array([streams], np.uint32).view(np.uint8), record]
        pieces.append(np.zeros(4 * (streams - 1), np.uint8))
    if at != len(state):
        raise ValueError("cut short")
    return np.concatenate(pieces)


def _end(state: Bytes, start: int, has_values: bool) -> int:
    """Return the end of the record whose number of cells is at ``start``."""
    (cells,) = struct.unpack_from("=I", state.data, start)
    at = start + 4
    if cells == 0:
        return at
    meta = state[at : at + cells * _CELL.itemsize]
    if len(meta) != cells * _CELL.itemsize or (meta.view(_CELL)["sequences"] != 1).any():
        raise ValueError("cells")
    at += len(meta)
    transposed, layers = struct.unpack_from("=II", state.data, at)
    at += 8
    for part in range(layers * (2 if has_values else 1)):
        if part >= layers and transposed:
            _, inner, outer = struct.unpack_from("=iII", state.data, at)
        else:
            (_, inner), outer = struct.unpack_from("=iQ", state.data, at), 1
        at += 12 + outer * cells * inner
        if at > len(state):
            raise ValueError("cut short")
    return at


class LlamaSlotCache(KvSlots):
    """Implements ``runtimes.runner.KvSlots``.

    ``can_trim`` False means that a slot's tokens are kept or dropped as a whole; but with a
    ``window``, its tail can be dropped as long as the window's cells before it are there.
    ``unified`` slots share one cache, where a copy refers to the source's cells.
    """

    def __init__(
        self,
        context: Any,
        slots: int,
        length: int,
        *,
        unified: bool,
        can_trim: bool,
        window: int = 0,
    ) -> None:
        super().__init__(slots, length)
        self._lib = library()
        self._context = context
        self._memory = self._lib.llama_get_memory(context)
        self._unified = unified
        self._streams = 1 if unified else slots
        self._lone = NativeBatch(1)
        self._shared: set[int] = set()  # slots whose cells may be another's, too
        self._turning = False  # keys wait for the next step to be rotated to a shifted position
        self.can_trim, self._window = can_trim, window
        self.can_shift = bool(self._lib.llama_memory_can_shift(self._memory)) and can_trim

    def remove(self, slot: int, start: int) -> bool:
        """Forget what the slot holds from position ``start`` on; False where that cannot be."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, slot, start, -1))

    def stepped(self) -> None:
        """Note that llama.cpp has run a step, and with it what it had put off."""
        self._turning = False

    def shortest(self, slot: int) -> int:
        """See ``KvSlots.shortest``. llama.cpp has all of a slot's tokens from the oldest that its
        windows' cells hold, some of which are there until they are written over."""
        if self.can_trim:
            return 0
        held = self.lengths[slot]
        if not self._window:
            return held
        oldest = self._lib.llama_memory_seq_pos_min(self._memory, slot)
        return min(oldest + self._window, held) if oldest > 0 else 0

    def trim(self, slot: int, length: int) -> None:
        """See ``KvSlots.trim``; raises ModelError where the slot cannot lose its tail."""
        if 0 < length < self.shortest(slot) or not self.remove(slot, length):
            raise ModelError(f"slot {slot} cannot be cut back to {length} tokens")
        self.lengths[slot] = min(self.lengths[slot], length)
        if length == 0:
            self._shared.discard(slot)

    def checkpoint(self, slot: int) -> memoryview:
        """See ``KvSlots.checkpoint``: what the flag PARTIAL_ONLY selects."""
        return self._read(slot, _PARTIAL).data if not self.can_trim else memoryview(b"")

    def rewind(self, slot: int, data: SavedKv, length: int) -> None:
        """See ``KvSlots.rewind``."""
        if not self.can_trim:
            self.require_held(slot, length)
            self._write(slot, np.frombuffer(data, np.uint8), _PARTIAL)
        if not self.remove(slot, length):
            self.trim(slot, 0)
            raise ModelError(f"slot {slot} cannot be brought back to {length} tokens")
        self.lengths[slot] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """See ``KvSlots.copy``; raises ModelError when the source does not hold ``length``."""
        self._require(source, length)
        if source == target:
            self.trim(target, length)
            return
        self.trim(target, 0)
        if length == 0:
            return
        # Cells that two slots share are not free when one's window has passed: a sliding window's
        # small cache would fill up with them.
        if self._unified and self.can_trim:
            self._lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
            self._shared |= {source, target}
        else:
            # Between split caches llama_memory_seq_cp copies the whole slot, used or not, and only
            # in the next step: 6.6 ms on top of it for 500 tokens in a slot of 4,096 of a 0.5B
            # model, where the way through a buffer takes 2.3 ms. It is also ordered: what is saved
            # or loaded before that step would be wrong.
            self._write(target, self._read(source))
            self.remove(target, length)
        self.lengths[target] = length

    def swap(self, first: int, second: int) -> None:
        """See ``KvSlots.swap``."""
        there = {second: first, first: second}
        held = [
            (slot, self.lengths[slot], self._read(slot)) for slot in there if self.lengths[slot]
        ]
        for slot in there:
            self.trim(slot, 0)
        for slot, length, data in held:
            self._write(there[slot], data)
            self.lengths[there[slot]] = length

    def save(self, slot: int) -> memoryview:
        """See ``KvSlots.save``: what ``llama_state_seq_get_data`` gives."""
        return self._read(slot).data

    def load(self, slot: int, data: SavedKv, length: int) -> None:
        """See ``KvSlots.load``."""
        self.trim(slot, 0)
        self.require_room(length)
        if length == 0:
            return
        self._write(slot, with_streams(np.frombuffer(data, np.uint8), self._streams))
        newest = self._lib.llama_memory_seq_pos_max(self._memory, slot)
        if newest != length - 1:
            self.remove(slot, 0)
            raise ModelError(f"the saved keys and values end at token {newest + 1}, not {length}")
        self.lengths[slot] = length

    def shift(self, slot: int, keep: int, discard: int) -> None:
        """See ``KvSlots.shift``. The keys are rotated in the next step."""
        if not self.can_shift:
            raise ModelError("llama.cpp cannot shift this model's keys and values")
        self._require(slot, keep + discard)
        if discard <= 0:
            return
        if slot in self._shared:
            # Positions are the cells' own: moving shared ones would move the other slots' tokens.
            own = self._read(slot)
            self.remove(slot, 0)
            self._write(slot, own)
            self._shared.discard(slot)
        lib, end = self._lib, keep + discard
        lib.llama_memory_seq_rm(self._memory, slot, keep, end)
        lib.llama_memory_seq_add(self._memory, slot, end, -1, -discard)
        self.lengths[slot] -= discard
        self._turning = True

    def _require(self, slot: int, length: int) -> None:
        self.require_held(slot, length)
        if not (self.can_trim or length in (0, self.lengths[slot])):
            raise ModelError(
                f"slot {slot} holds {self.lengths[slot]} tokens of a model that keeps them as a "
                f"whole or not at all; {length} cannot be had"
            )

    def _settle(self) -> None:
        """Run what waits for the next step, by a token that is forgotten again."""
        if not self._turning:
            return
        slot = self.lengths.index(min(self.lengths))  # one with room
        self._lone.fill((StepRow(slot, self.lengths[slot], (0,), 0),))
        code = self._lib.llama_decode(self._context, self._lone.native)
        self.remove(slot, self.lengths[slot])
        if code != 0:
            raise ModelError(f"llama.cpp cannot shift: {recent_errors() or f'code {code}'}")
        self.stepped()

    def _read(self, slot: int, flags: int = 0) -> Bytes:
        """The slot's state as llama.cpp writes it."""
        self._settle()
        lib, context = self._lib, self._context
        data = np.empty(lib.llama_state_seq_get_size_ext(context, slot, flags), np.uint8)
        pointer = data.ctypes.data_as(_BYTES)
        size = lib.llama_state_seq_get_data_ext(context, pointer, data.nbytes, slot, flags)
        if size != data.nbytes:
            raise ModelError(f"llama.cpp cannot save slot {slot}: {recent_errors()}")
        return data

    def _write(self, slot: int, data: Bytes, flags: int = 0) -> None:
        """Put a state that llama.cpp wrote into an empty slot; on failure it is empty again."""
        lib, context, pointer = self._lib, self._context, data.ctypes.data_as(_BYTES)
        read = lib.llama_state_seq_set_data_ext(context, pointer, data.nbytes, slot, flags)
        if read != data.nbytes:
            self.trim(slot, 0)
            raise ModelError(
                f"llama.cpp does not take these keys and values: "
                f"{recent_errors() or 'no reason given'}"
            )
