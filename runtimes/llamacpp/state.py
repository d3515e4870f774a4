"""llama.cpp's serialised state of one sequence, for caches of another layout than its own.

What ``llama_state_seq_get_data`` writes (``state_write`` in llama-kv-cache.cpp, and the ``_iswa``
one, which writes two caches), native byte order::

    u32 magic, i32 sequence
    for each cache: u32 streams, and for each stream: u32 cells, and unless that is 0 a record:
      for each cell: i32 position, u32 1, i32 sequence
      u32 values are transposed, u32 layers
      for each layer: i32 type, u64 bytes a cell, keys [cells, bytes]
      then for each layer, unless the model keeps no values:
        i32 type, u64 bytes a cell, values [cells, bytes]; or, transposed,
        i32 type, u32 bytes an element, u32 elements, values [elements, cells, bytes]

The number of streams is the slots of a split cache and 1 of a unified one; a sequence is in one of
them. Recurrent states and the caches of a few architectures look otherwise.
"""

import struct

import numpy as np
import numpy.typing as npt

_PREFIX = 8
_CELL = np.dtype([("position", "i4"), ("sequences", "u4"), ("sequence", "i4")])

Bytes = npt.NDArray[np.uint8]


class _UnknownLayoutError(Exception):
    """The bytes are not laid out as the docstring of this module says."""


def with_streams(state: Bytes, streams: int) -> Bytes:
    """The same keys and values for a cache of ``streams`` streams; a state of another layout than
    this module knows as it is.
    """
    for has_values in (True, False):
        try:
            return _with_streams(state, streams, has_values)
        except (_UnknownLayoutError, struct.error):
            continue
    return state


def _with_streams(state: Bytes, streams: int, has_values: bool) -> Bytes:
    pieces, at = [state[:_PREFIX]], _PREFIX
    while at < len(state):
        (count,) = struct.unpack_from("=I", state.data, at)
        at += 4
        record = np.zeros(4, np.uint8)  # no cells
        for _ in range(count):
            begin, at = at, _end(state, at, has_values)
            if at - begin > 4:
                if len(record) > 4:
                    raise _UnknownLayoutError("cells in two streams")
                record = state[begin:at]
        pieces += [np.array([streams], np.uint32).view(np.uint8), record]
        pieces.append(np.zeros(4 * (streams - 1), np.uint8))
    if at != len(state):
        raise _UnknownLayoutError("cut short")
    return np.concatenate(pieces)


def _end(state: Bytes, start: int, has_values: bool) -> int:
    """Where the record ends whose number of cells is at ``start``."""
    (cells,) = struct.unpack_from("=I", state.data, start)
    at = start + 4
    if cells == 0:
        return at
    meta = state[at : at + cells * _CELL.itemsize]
    if len(meta) != cells * _CELL.itemsize or (meta.view(_CELL)["sequences"] != 1).any():
        raise _UnknownLayoutError("cells")
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
            raise _UnknownLayoutError("cut short")
    return at
