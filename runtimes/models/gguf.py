"""Read a GGUF file's header without any native library.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3; 2 differs in nothing
that matters here). Block sizes: ``GGML_QUANT_SIZES`` of llama.cpp's ``gguf-py``.

A model may be in several files, as llama.cpp's gguf-split names and marks them:
NAME-00001-of-00003.gguf has the metadata; each part says in ``split.no`` (from 0) and
``split.count`` which one it is. llama.cpp is given the first and finds the others by their names.
"""

import contextlib
import math
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError

# type id -> (name, weights per block, bytes per block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}

# value type id -> struct format of the scalar kinds
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MOST_ELEMENTS = 1024  # of an array that is read
_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's entry: shape in GGUF order (fastest dimension first), offset in bytes."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table. Long arrays are known by their length only."""

    metadata: dict[str, Any]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    data_bytes_expected: int  # the file's size if it is whole


class _CutError(ModelError):
    """There are fewer bytes than the header has."""


class _Cursor:
    """A read position in a file, or its first bytes, that never runs past the end."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        begin = self.at
        self.skip(count)
        return self.data[begin : self.at]

    def scalar(self, fmt: str) -> Any:
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise _CutError("the file ends in the middle of its header")


def _read_value(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    raise ModelError(f"unknown metadata type {kind} in the header")


def _skip_array(cursor: _Cursor, kind: int, length: int) -> list[Any]:
    """Move past an array; return its elements if they are few and scalar."""
    if kind in _SCALARS:
        if length <= _MOST_ELEMENTS:
            return [cursor.scalar(_SCALARS[kind]) for _ in range(length)]
        cursor.skip(struct.calcsize("<" + _SCALARS[kind]) * length)
    elif kind == _STRING:
        for _ in range(length):
            cursor.skip(cursor.scalar("Q"))
    else:
        raise ModelError(f"unknown array element type {kind} in the header")
    return []


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    dims = cursor.scalar("I")
    if dims > 4:
        raise ModelError(f"tensor {name!r} has {dims} dimensions; the header is damaged")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in TENSOR_TYPES:
        raise ModelError(f"tensor {name!r} has the unknown type {kind}")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    return TensorInfo(name, shape, type_name, offset, math.prod(shape) // block * block_bytes)


def read_header(path: Path) -> GgufHeader:
    """Parse the header of ``path``.

    Raises ModelError when the file is no GGUF file, or is shorter than its header promises.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError("not a GGUF file (its first bytes are not 'GGUF')")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _parse(data)
                size = len(data)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    if size < header.data_bytes_expected:
        raise ModelError(
            f"{path} is truncated: {size:,} bytes of {header.data_bytes_expected:,}; "
            "download or build it again"
        )
    return header


def read_start(data: bytes) -> GgufHeader:
    """What the first bytes of a file tell, as far as they go: metadata and lengths of arrays, no
    tensors, and no size where metadata is cut off. Raises ModelError when they are not those of a
    GGUF file."""
    if data[:4] != b"GGUF":
        raise ModelError("not a GGUF file (its first bytes are not 'GGUF')")
    header = GgufHeader({}, {}, (), 0)
    with contextlib.suppress(_CutError):
        cursor = _Cursor(data)
        _read_pairs(cursor, _counts(cursor)[1], header)
        header = replace(header, data_bytes_expected=cursor.at)
    return header


def _parse(data: mmap.mmap) -> GgufHeader:
    cursor = _Cursor(data)
    tensor_count, pair_count = _counts(cursor)
    header = GgufHeader({}, {}, (), 0)
    _read_pairs(cursor, pair_count, header)
    tensors = tuple(_read_tensor(cursor) for _ in range(tensor_count))
    said = int(header.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    alignment = said or _DEFAULT_ALIGNMENT
    start = -(-cursor.at // alignment) * alignment
    end = max((t.offset + t.nbytes for t in tensors), default=0)
    whole = start + end if tensors else cursor.at
    return replace(header, tensors=tensors, data_bytes_expected=whole)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """How many tensors and how many pairs of metadata follow."""
    cursor.take(4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"GGUF version {version} is not supported (2 and 3 are)")
    return cursor.scalar("Q"), cursor.scalar("Q")


def _read_pairs(cursor: _Cursor, count: int, header: GgufHeader) -> None:
    """Fill the metadata of ``header``."""
    for _ in range(count):
        key, kind = cursor.string(), cursor.scalar("I")
        if kind == _ARRAY:
            of, length = cursor.scalar("I"), cursor.scalar("Q")
            header.array_lengths[key] = length
            if elements := _skip_array(cursor, of, length):
                header.metadata[key] = elements
        else:
            header.metadata[key] = _read_value(cursor, kind)


def gguf_files(folder: Path) -> list[Path]:
    """The .gguf files of a folder by name, of a split model only the first."""
    names = ((path, _PART_NAME.fullmatch(path.name)) for path in sorted(folder.glob("*.gguf")))
    return [path for path, name in names if name is None or int(name[2]) == 1]


def named_parts(path: Path) -> tuple[Path, ...]:
    """All parts of the model of which ``path`` is one by its name; else this file alone."""
    name = _PART_NAME.fullmatch(path.name)
    if name is None:
        return (path,)
    numbers = range(1, int(name[3]) + 1)
    return tuple(path.with_name(f"{name[1]}-{number:05}-of-{name[3]}.gguf") for number in numbers)


def read_parts(path: Path) -> tuple[GgufHeader, tuple[Path, ...]]:
    """The header of a model with the tensors of all its parts, and the parts.

    Raises ModelError when ``path`` is not the first, or when one is missing or damaged.
    """
    header = read_header(path)
    count = _number(header, "split.count")
    if count < 2:
        return header, (path,)
    parts = named_parts(path)
    if len(parts) != count:
        raise ModelError(
            f"{path} is part {_number(header, 'split.no') + 1} of {count} of a split model, and "
            f"llama.cpp finds the others by name: call it NAME-0000N-of-{count:05}.gguf again"
        )
    if _number(header, "split.no"):
        raise ModelError(f"{path} is a later part of a split model: give the first, {parts[0]}")
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ModelError(
            f"{path} is the first of {count} parts; beside it there is no {', no '.join(missing)}: "
            "download or build the model again"
        )
    headers = [header, *_others(parts)]
    tensors = tuple(tensor for one in headers for tensor in one.tensors)
    if len(tensors) != header.metadata.get("split.tensors.count", len(tensors)):
        raise ModelError(f"the {count} parts of {path} do not belong together")
    return replace(header, tensors=tensors), parts


def _others(parts: tuple[Path, ...]) -> Iterator[GgufHeader]:
    for number, part in enumerate(parts[1:], 1):
        header = read_header(part)
        if (_number(header, "split.no"), _number(header, "split.count")) != (number, len(parts)):
            raise ModelError(f"{part} is not what its name says: another part, or of another model")
        yield header


def _number(header: GgufHeader, key: str) -> int:
    return int(header.metadata.get(key, 0))
