"""Protobuf messages as bytes, read and written without onnx.

The wire format is https://protobuf.dev/programming-guides/encoding. A file may come from anybody:
what is read of it is bounded by a `ParseWork`, and no message is read because another one nests it.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# A message: the values of each field, numbers or, where they have a length, bytes.
Fields = defaultdict[int, list[Any]]

MOST_BYTES = 2**31 - 1  # of a message, as protobuf says
_MOST_NUMBER = 2**29 - 1  # of a field, as protobuf says
_MOST_TEXT = 2**16  # bytes of a name


@dataclass(slots=True)
class ParseWork:
    """What may still be read of a file, far above what the largest graphs have."""

    fields: int = 2**20
    characters: int = 2**25

    def step(self) -> None:
        """Count one field. Raises ValueError."""
        self.fields -= 1
        if self.fields < 0:
            raise ValueError("it has too many parts")


def fields(data: Any, work: ParseWork) -> Fields:
    """A message's values by their numbers; raises ValueError or IndexError for what is none."""
    found: Fields = defaultdict(list)
    for number, value, _ in items(data, work):
        if value is not None:
            found[number].append(value)
    return found


def items(data: Any, work: ParseWork) -> Iterator[tuple[int, Any, memoryview]]:
    """Each field's number, its value (None for the kinds that nothing here reads), and all of its
    bytes."""
    if not isinstance(data, memoryview):
        raise ValueError("a number stands where a message is expected")
    at, end = 0, len(data)
    while at < end:
        work.step()
        begin = at
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Any = None
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
            if size < 0 or at + size > end:
                raise ValueError("a field runs past its end")
            value = data[at : at + size] if kind == 2 else None
            at += size
        if not 0 < number <= _MOST_NUMBER:
            raise ValueError(f"there is no field {number}")
        yield number, value, data[begin:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of 64 bits, which has 10 bytes at most, and where it ends."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number has more than 10 bytes")


def varints(data: memoryview, work: ParseWork) -> list[int]:
    """Numbers that are packed one behind the other."""
    at, values = 0, []
    while at < len(data):
        work.step()
        value, at = _varint(data, at)
        values.append(value)
    return values


def last_text(values: list[Any], work: ParseWork) -> str:
    """The text of a field that may be given once."""
    return texts(values[-1:], work)[0] if values else ""


def texts(values: list[Any], work: ParseWork) -> tuple[str, ...]:
    """The texts of a field."""
    return tuple(text(data, work) for data in values)


def text(data: Any, work: ParseWork) -> str:
    """A name. Raises ValueError for what is none."""
    if not isinstance(data, memoryview) or len(data) > _MOST_TEXT:
        raise ValueError("a name is no text, or too long")
    work.characters -= len(data)
    if work.characters < 0:
        raise ValueError("its names are too long")
    return str(data, "utf-8", errors="replace")


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
