"""Read a GGUF file's header without any native library.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3; 2 differs in nothing
that matters here). Block sizes: ``GGML_QUANT_SIZES`` of llama.cpp's ``gguf-py``.

A model may be in several files, as llama.cpp's gguf-split names and marks them:
NAME-00001-of-00003.gguf has the metadata; each part says in ``split.no`` (from 0) and
``split.count`` which one it is. llama.cpp is given the first and finds the others by their names.
"""

import math
import mmap
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.untrusted import check_whole, open_regular, visible

# Types of tensors, one a line: id, name, weights per block, bytes per block.
_TENSOR_TYPES = """
 0 F32       1   4
 1 F16       1   2
 2 Q4_0     32  18
 3 Q4_1     32  20
 6 Q5_0     32  22
 7 Q5_1     32  24
 8 Q8_0     32  34
 9 Q8_1     32  36
10 Q2_K    256  84
11 Q3_K    256 110
12 Q4_K    256 144
13 Q5_K    256 176
14 Q6_K    256 210
15 Q8_K    256 292
16 IQ2_XXS 256  66
17 IQ2_XS  256  74
18 IQ3_XXS 256  98
19 IQ1_S   256  50
20 IQ4_NL   32  18
21 IQ3_S   256 110
22 IQ2_S   256  82
23 IQ4_XS  256 136
24 I8        1   1
25 I16       1   2
26 I32       1   4
27 I64       1   8
28 F64       1   8
29 IQ1_M   256  56
30 BF16      1   2
34 TQ1_0   256  54
35 TQ2_0   256  66
39 MXFP4    32  17
40 NVFP4    64  36
41 Q1_0    128  18
42 Q2_0     64  18
"""
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    int(number): (name, int(weights), int(nbytes))
    for number, name, weights, nbytes in map(str.split, _TENSOR_TYPES.strip().splitlines())
}

# value type id -> struct format of the scalar kinds
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRUCTS = {fmt: struct.Struct("<" + fmt) for fmt in _SCALARS.values()}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
# A file may come from anybody, and a hole of a terabyte costs no room on a disk. The largest models
# have about 60 pairs, 2,500 tensors, 1,000,000 texts in arrays, and a template of 50 KB.
_MOST_PAIRS, _MOST_TENSORS, _MOST_TEXTS = 2**14, 2**17, 2**21
_MOST_NAME = 2**16 - 1  # bytes of a key or a tensor's name, as the format says
MOST_TEXT = 2**20  # bytes of a text that is kept
MOST_ELEMENTS = 1024  # of an array that is kept
_MOST_LENGTH = 2**32  # of any array
_MOST_KEPT = 2**25  # bytes of all texts and arrays that are kept, about
_MOST_SIZE = 2**63 - 1  # elements of a tensor, and bytes of a file
CACHE_KEY = "ingot.kv_type"  # what a file says of the keys and values that it was made for
_MOST_PARTS = 99_999  # what names of parts have digits for
_AGAIN = "the file's header is damaged: download or build it again"
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
    """Metadata and tensor table. Long arrays and long texts are known by their length only.

    Values have whatever type the file gives them: what is used goes through the methods, which
    raise ModelError naming file and key.
    """

    metadata: dict[str, Any]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    data_begins: int  # the place in the file that offsets of tensors count from; 0: not known
    where: str  # the file, for messages

    def value(self, key: str, default: Any = None) -> Any:
        """The value of any type; ``default`` where the file does not say."""
        if key in self.metadata:
            return self.metadata[key]
        if key in self.array_lengths:
            raise self.damaged(key, f"has {self.array_lengths[key]:,} elements")
        return default

    def whole(self, key: str, default: int = 0, least: int = 0, most: int = 2**32 - 1) -> int:
        """A whole number from ``least`` to ``most``, the largest where there are several."""
        return max(self.numbers(key, default, least, most))

    def numbers(self, key: str, default: int, least: int = 0, most: int = 2**32 - 1) -> list[int]:
        """A whole number, or several."""
        value, where = self.value(key, default), f"{self.where}: {visible(key)}"
        several = value if isinstance(value, list) else [value]
        try:
            return [check_whole(one, where, least, most) for one in several]
        except ModelError as error:
            raise ModelError(f"{error}; {_AGAIN}") from None

    def real(self, key: str) -> float:
        """A finite number; 0 where the file does not say."""
        value = self.value(key, 0.0)
        if isinstance(value, (int, float)) and abs(value) <= 2**63:  # false for NaN
            return float(value)
        raise self.damaged(key, f"is {value!r:.60}, not a number")

    def text(self, key: str) -> str | None:
        """A text."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value
        raise self.damaged(key, f"is {value!r:.60}, not a text")

    def damaged(self, key: str, why: str) -> ModelError:
        """An error about what the file gives under ``key``."""
        return ModelError(f"{self.where}: {visible(key)} {visible(why)}; {_AGAIN}")


class _CutError(ModelError):
    """There are fewer bytes than the header has."""


class _Cursor:
    """A read position in a file, or its first bytes, that never runs past the end."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.at = 0
        self.room, self.texts = _MOST_KEPT, _MOST_TEXTS  # what may still be kept, or passed

    def scalar(self, fmt: str) -> Any:
        form, begin = _STRUCTS[fmt], self.at
        self.skip(form.size)
        return form.unpack_from(self.data, begin)[0]

    def name(self) -> str:
        size = self.scalar("Q")
        if size > _MOST_NAME:
            raise ModelError(f"a name has {size:,} bytes; {_AGAIN}")
        return self.text(size)

    def text(self, size: int) -> str:
        self.keep(size)
        begin = self.at
        self.skip(size)
        return self.data[begin : self.at].decode("utf-8", errors="replace")

    def keep(self, count: int) -> None:
        self.room -= count
        if self.room < 0:
            raise ModelError(f"there is too much metadata; {_AGAIN}")

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise _CutError("the file ends in the middle of its header")

    def skip_strings(self, count: int) -> None:
        self.texts -= count
        if self.texts < 0:
            raise ModelError(f"an array has {count:,} texts; {_AGAIN}")
        size_at, data, at = _STRUCTS["Q"].unpack_from, self.data, self.at
        try:
            for _ in range(count):
                at += 8 + size_at(data, at)[0]
        except (struct.error, OverflowError):
            at = len(data) + 1
        self.at = at
        self.skip(0)


def _skip_array(cursor: _Cursor, kind: int, length: int) -> list[Any]:
    """Move past an array; return its elements if they are few and scalar."""
    if kind in _SCALARS:
        if length <= MOST_ELEMENTS:
            cursor.keep(32 * length)
            return [cursor.scalar(_SCALARS[kind]) for _ in range(length)]
        cursor.skip(_STRUCTS[_SCALARS[kind]].size * length)
    elif kind == _STRING:
        cursor.skip_strings(length)
    else:
        raise ModelError(f"unknown array element type {kind} in the header")
    return []


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.name()
    dims = cursor.scalar("I")
    if dims > 4:
        raise ModelError(f"tensor {name[:80]!r} has {dims} dimensions; {_AGAIN}")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in TENSOR_TYPES:
        raise ModelError(f"tensor {name[:80]!r} has the unknown type {kind}")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    nbytes = math.prod(shape) // block * block_bytes
    if max(*shape, nbytes, offset + nbytes, 0) > _MOST_SIZE:
        raise ModelError(f"tensor {name[:80]!r} is larger than a file can be; {_AGAIN}")
    return TensorInfo(name, shape, type_name, offset, nbytes)


def read_header(path: Path) -> GgufHeader:
    """Parse the header of ``path``.

    Raises ModelError when the file is no GGUF file, or is shorter than its header promises.
    """
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            header, size = _parse(_Cursor(data), str(path)), len(data)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    if not header.tensors:
        return header
    alignment = header.whole("general.alignment", _DEFAULT_ALIGNMENT, 1)
    if alignment & (alignment - 1):
        raise header.damaged("general.alignment", f"is {alignment}, not a power of two")
    end = max(tensor.offset + tensor.nbytes for tensor in header.tensors)
    if sum(tensor.nbytes for tensor in header.tensors) > end:
        raise ModelError(f"{path}: tensors overlap; {_AGAIN}")
    begins = -(-header.data_begins // alignment) * alignment
    if size < begins + end:
        raise ModelError(
            f"{path} is truncated: {size:,} bytes of {begins + end:,}; download or build it again"
        )
    return replace(header, data_begins=begins)


def read_start(data: bytes, where: str = "its header") -> GgufHeader:
    """Parse a header from the first bytes of a file, as far as they go: metadata and lengths of
    arrays, no tensors, and no size where metadata is cut off. Raises ModelError when they are not
    those of a GGUF file; ``where`` is what messages call it."""
    header, cursor = GgufHeader({}, {}, (), 0, where), _Cursor(data)
    try:
        _read_pairs(cursor, _counts(cursor)[1], header)
        return replace(header, data_begins=cursor.at)
    except _CutError:
        return header
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def _parse(cursor: _Cursor, where: str) -> GgufHeader:
    tensor_count, pair_count = _counts(cursor)
    header = GgufHeader({}, {}, (), 0, where)
    _read_pairs(cursor, pair_count, header)
    tensors: dict[str, TensorInfo] = {}
    for _ in range(tensor_count):
        tensor = _read_tensor(cursor)
        if tensors.setdefault(tensor.name, tensor) is not tensor:
            raise ModelError(f"two tensors are called {tensor.name[:80]!r}; {_AGAIN}")
    return replace(header, tensors=tuple(tensors.values()), data_begins=cursor.at)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """How many tensors and how many pairs of metadata follow."""
    if cursor.data[:4] != b"GGUF":
        raise ModelError("not a GGUF file (its first bytes are not 'GGUF')")
    cursor.skip(4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ModelError(f"GGUF version {version} is not supported (2 and 3 are)")
    tensors, pairs = cursor.scalar("Q"), cursor.scalar("Q")
    if tensors > _MOST_TENSORS or pairs > _MOST_PAIRS:
        raise ModelError(f"{tensors:,} tensors and {pairs:,} pairs of metadata; {_AGAIN}")
    return tensors, pairs


def _read_pairs(cursor: _Cursor, count: int, header: GgufHeader) -> None:
    """Fill the metadata of ``header``."""
    metadata, lengths = header.metadata, header.array_lengths
    for _ in range(count):
        key, kind = cursor.name(), cursor.scalar("I")
        if key in metadata or key in lengths:
            raise ModelError(f"{visible(key[:80])} is given twice; {_AGAIN}")
        if kind == _ARRAY:
            of, length = cursor.scalar("I"), cursor.scalar("Q")
            if length > _MOST_LENGTH:
                raise ModelError(f"{visible(key[:80])} has {length:,} elements; {_AGAIN}")
            lengths[key] = length
            if elements := _skip_array(cursor, of, length):
                metadata[key] = elements
        elif kind == _STRING and (size := cursor.scalar("Q")) > MOST_TEXT:
            cursor.skip(size)
            lengths[key] = size
        elif kind == _STRING:
            metadata[key] = cursor.text(size)
        elif kind in _SCALARS:
            metadata[key] = cursor.scalar(_SCALARS[kind])
        else:
            raise ModelError(f"unknown metadata type {kind} in the header")


def gguf_files(folder: Path) -> list[Path]:
    """The .gguf files of a folder by name, of a split model only the first."""
    names = ((path, _PART_NAME.fullmatch(path.name)) for path in sorted(folder.glob("*.gguf")))
    return [path for path, name in names if name is None or int(name[2]) == 1]


def named_parts(path: Path) -> tuple[Path, ...]:
    """All parts of the model of which ``path`` is one by its name; else this file alone."""
    name = _PART_NAME.fullmatch(path.name)
    if name is None or not int(name[3]):
        return (path,)
    numbers = range(1, int(name[3]) + 1)
    return tuple(path.with_name(f"{name[1]}-{number:05}-of-{name[3]}.gguf") for number in numbers)


def read_parts(path: Path) -> tuple[GgufHeader, tuple[Path, ...]]:
    """The header of a model with the tensors of all its parts, and the parts.

    Raises ModelError when ``path`` is not the first, or when one is missing or damaged.
    """
    header = read_header(path)
    count = header.whole("split.count", most=_MOST_PARTS)
    if count < 2:
        return header, (path,)
    parts = named_parts(path)
    if len(parts) != count:
        raise ModelError(
            f"{path} is part {_number(header) + 1} of {count} of a split model, and "
            f"llama.cpp finds the others by name: call it NAME-0000N-of-{count:05}.gguf again"
        )
    if _number(header):
        raise ModelError(f"{path} is a later part of a split model: give the first, {parts[0]}")
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ModelError(
            f"{path} is the first of {count} parts; beside it there is no "
            f"{', no '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}: "
            "download or build the model again"
        )
    headers = [header]
    for number, part in enumerate(parts[1:], 1):
        other = read_header(part)
        if (_number(other), other.whole("split.count", most=_MOST_PARTS)) != (number, count):
            raise ModelError(f"{part} is not what its name says: another part, or of another model")
        headers.append(other)
    tensors = tuple(tensor for one in headers for tensor in one.tensors)
    if len(tensors) != header.metadata.get("split.tensors.count", len(tensors)):
        raise ModelError(f"the {count} parts of {path} do not belong together")
    return replace(header, tensors=tensors), parts


def _number(header: GgufHeader) -> int:
    """Number of this part, from 0."""
    return header.whole("split.no", most=_MOST_PARTS)
