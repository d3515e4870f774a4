"""Protobuf messages as bytes, read and written without onnx.

The wire format is https://protobuf.dev/programming-guides/encoding.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

# A message: the values of each field, numbers or, where they have a length, bytes.
Fields = defaultdict[int, list[Any]]


def fields(data: memoryview) -> Fields:
    """A message's values by their numbers; raises ValueError or IndexError for what is none."""
    found: Fields = defaultdict(list)
    for number, value, _ in items(data):
        if value is not None:
            found[number].append(value)
    return found


def items(data: memoryview) -> Iterator[tuple[int, Any, memoryview]]:
    """Each field's number, its value (None for the kinds that nothing here reads), and all of its
    bytes."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _varint(data, at)
        kind = key & 7
        value: Any = None
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
            if size < 0 or at + size > len(data):
                raise ValueError("a field runs past its end")
            value = data[at : at + size] if kind == 2 else None
            at += size
        yield key >> 3, value, data[begin:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def varints(data: memoryview) -> list[int]:
    """Numbers that are packed one behind the other."""
    at, values = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def last_text(values: list[Any]) -> str:
    """The text of a field that may be given once."""
    return texts(values)[-1] if values else ""


def texts(values: list[Any]) -> tuple[str, ...]:
    """The texts of a field."""
    return tuple(str(data, "utf-8", errors="replace") for data in values)


def encode(number: int, value: int | str | bytes) -> bytes:
    """A field: a number from 0 on, or a text or message with its length."""
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value)
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | 2) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
