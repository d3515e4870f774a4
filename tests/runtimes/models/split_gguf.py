"""Cuts a GGUF file into parts, as llama.cpp's gguf-split does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from runtimes.models.gguf import (
    _SCALARS,
    TENSOR_TYPES,
    TensorInfo,
    _Cursor,
    _skip_array,
    read_header,
)
from tests.runtimes.models.sparse_gguf import padded

_UINT16, _INT32, _STRING, _ARRAY = 2, 5, 8, 9


def split_gguf(path: Path, folder: Path, counts: Sequence[int], name: str = "model") -> list[Path]:
    """Parts of so many tensors each; all that are left are in one more."""
    data, header = path.read_bytes(), read_header(path)
    pairs, at = _pairs(data)
    assert "general.alignment" not in header.metadata
    start = at + sum(_table_bytes(tensor) for tensor in header.tensors)
    start = padded(start)
    left = list(header.tensors)
    shares = [[left.pop(0) for _ in range(count)] for count in counts] + [left]
    parts = []
    for number, share in enumerate(shares):
        marks = struct.pack("<Q8sIH", 8, b"split.no", _UINT16, number)
        marks += struct.pack("<Q11sIH", 11, b"split.count", _UINT16, len(shares))
        marks += struct.pack("<Q19sIi", 19, b"split.tensors.count", _INT32, len(header.tensors))
        own = data[24:at] if number == 0 else b""
        head = (
            struct.pack("<4sIQQ", b"GGUF", 3, len(share), 3 + (pairs if own else 0)) + own + marks
        )
        offset, body = 0, b""
        for tensor in share:
            head += _entry(tensor, offset)
            piece = data[start + tensor.offset : start + tensor.offset + tensor.nbytes]
            body += piece.ljust(padded(len(piece)), b"\0")
            offset = len(body)
        part = folder / f"{name}-{number + 1:05}-of-{len(shares):05}.gguf"
        part.write_bytes(head.ljust(padded(len(head)), b"\0") + body)
        parts.append(part)
    return parts


def _pairs(data: bytes) -> tuple[int, int]:
    """How many pairs of metadata there are, and where they end."""
    cursor = _Cursor(data)  # type: ignore[arg-type]
    cursor.take(16)
    count = cursor.scalar("Q")
    for _ in range(count):
        cursor.name()
        kind = cursor.scalar("I")
        if kind == _ARRAY:
            _skip_array(cursor, cursor.scalar("I"), cursor.scalar("Q"))
        elif kind == _STRING:
            cursor.text(cursor.scalar("Q"))
        else:
            cursor.scalar(_SCALARS[kind])
    return count, cursor.at


def _entry(tensor: TensorInfo, offset: int) -> bytes:
    kind = next(number for number, (name, *_) in TENSOR_TYPES.items() if name == tensor.type_name)
    name, dims = tensor.name.encode(), len(tensor.shape)
    return struct.pack(
        f"<Q{len(name)}sI{dims}QIQ", len(name), name, dims, *tensor.shape, kind, offset
    )


def _table_bytes(tensor: TensorInfo) -> int:
    return len(_entry(tensor, 0))
