"""llama.cpp's serialised state of one sequence, taken apart.

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
them. So the same keys and values can go from one such layout to another, and lose their tail.
Recurrent states and the caches of a few architectures look otherwise.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError

_PREFIX = 8
_CELL = np.dtype([("position", "i4"), ("sequences", "u4"), ("sequence", "i4")])

Bytes = npt.NDArray[np.uint8]


class _UnknownLayoutError(Exception):
    """The bytes are not laid out as the docstring of this module says."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A layer's keys or values: ``outer`` times [cells, inner bytes] from ``start`` on."""

    start: int
    outer: int
    inner: int


@dataclass(frozen=True, slots=True)
class Record:
    """One cache's cells of a sequence: bytes [start, end) of the state, from its count on."""

    streams: int
    start: int
    end: int
    cells: int
    tensors: tuple[Tensor, ...]


def parse(state: Bytes) -> tuple[Record, ...] | None:
    """The records in a state; None when its layout is another than this module knows."""
    for has_values in (True, False):
        try:
            return tuple(_records(state, has_values))
        except (_UnknownLayoutError, struct.error):
            continue
    return None


def positions(state: Bytes, record: Record) -> npt.NDArray[np.int32]:
    """The position of each cell, in the order of the cells."""
    at = record.start + 4
    cells = state[at : at + record.cells * _CELL.itemsize].view(_CELL)
    return np.ascontiguousarray(cells["position"])


def with_streams(state: Bytes, records: tuple[Record, ...], streams: int) -> Bytes:
    """The same keys and values for a cache of ``streams`` streams."""
    if all(record.streams == streams for record in records):
        return state
    pieces: list[Bytes] = [state[:_PREFIX]]
    for record in records:
        pieces.append(_u32(streams))
        pieces.append(state[record.start : record.end])
        pieces.append(_u32(*[0] * (streams - 1)))
    return np.concatenate(pieces)


def cut(state: Bytes, records: tuple[Record, ...], length: int) -> Bytes:
    """What of a state lies before position ``length``, for a cache of one stream."""
    pieces: list[Bytes] = [state[:_PREFIX]]
    for record in records:
        keep = positions(state, record) < length
        count = int(keep.sum())
        pieces += [_u32(1), _u32(count)]
        if count == 0:
            continue
        at = record.start + 4
        end = at + record.cells * _CELL.itemsize
        pieces.append(_kept(state[at:end].reshape(1, record.cells, -1), keep, count))
        at = end
        for tensor in record.tensors:
            end = tensor.start + tensor.outer * record.cells * tensor.inner
            pieces.append(state[at : tensor.start])
            block = state[tensor.start : end].reshape(tensor.outer, record.cells, tensor.inner)
            pieces.append(_kept(block, keep, count))
            at = end
    return np.concatenate(pieces)


def require_length(state: Bytes, records: tuple[Record, ...], length: int) -> None:
    """Raise ModelError unless the state's newest token is the one before position ``length``."""
    newest = max((int(positions(state, r).max()) for r in records if r.cells), default=-1)
    if newest != length - 1:
        raise ModelError(f"the saved keys and values end at token {newest + 1}, not {length}")


def _kept(block: Bytes, keep: npt.NDArray[np.bool_], count: int) -> Bytes:
    """The kept cells of [outer, cells, inner]; without an index where they are the first ones."""
    part = block[:, :count] if keep[:count].all() else block[:, keep]
    return part.reshape(-1)


def _u32(*values: int) -> Bytes:
    return np.array(values, np.uint32).view(np.uint8)


def _records(state: Bytes, has_values: bool) -> list[Record]:
    records, at = [], _PREFIX
    while at < len(state):
        (streams,) = struct.unpack_from("=I", state.data, at)
        at += 4
        found: Record | None = None
        for _ in range(streams):
            (cells,) = struct.unpack_from("=I", state.data, at)
            if cells == 0:
                at += 4
                continue
            if found:
                raise _UnknownLayoutError("cells in two streams")
            found = _record(state, at, cells, streams, has_values)
            at = found.end
        records.append(found or Record(streams, at - 4, at, 0, ()))
    if at != len(state):
        raise _UnknownLayoutError("cut short")
    return records


def _record(state: Bytes, start: int, cells: int, streams: int, has_values: bool) -> Record:
    at = start + 4
    meta = state[at : at + cells * _CELL.itemsize]
    if len(meta) != cells * _CELL.itemsize or (meta.view(_CELL)["sequences"] != 1).any():
        raise _UnknownLayoutError("cells")
    at += len(meta)
    transposed, layers = struct.unpack_from("=II", state.data, at)
    at += 8
    tensors = []
    for part in range(2 if has_values else 1):
        for _ in range(layers):
            if part == 1 and transposed:
                _, inner, outer = struct.unpack_from("=iII", state.data, at)
                at += 12
            else:
                (_, inner), outer = struct.unpack_from("=iQ", state.data, at), 1
                at += 12
            tensors.append(Tensor(at, outer, inner))
            at += outer * cells * inner
            if at > len(state):
                raise _UnknownLayoutError("cut short")
    return Record(streams, start, at, cells, tuple(tensors))
