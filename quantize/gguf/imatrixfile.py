"""Importance matrices on disk: llama.cpp's two formats, read and written; headers of GGUF files.

Formats: ``IMatrixCollector::save_imatrix`` and ``save_imatrix_legacy`` of llama.cpp's
tools/imatrix/imatrix.cpp, ``common_imatrix_load`` of common/imatrix-loader.cpp.
"""

import io
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantize.arrays import Bytes, Floats
from quantize.errors import UsageError
from runtimes.errors import ModelError
from runtimes.models.gguf import TensorInfo, read_header

_SUMS, _COUNTS = ".in_sum2", ".counts"
_ALIGNMENT = 32
GgufValue = int | float | str | list[str]
_U32, _FLOAT32, _STRING, _ARRAY = 4, 6, 8, 9  # types of values in GGUF
_F32 = 0  # type of tensors
_MOST_ENTRIES, _LONGEST_NAME = 1_000_000, 512


@dataclass(frozen=True, slots=True)
class ImatrixEntry:
    """Inputs of one weight tensor: ``sums`` of squares [matrices, width] over
    ``counts`` [matrices] rows. A tensor of a mixture has one matrix per expert, others one."""

    sums: Floats
    counts: Floats

    @property
    def means(self) -> Floats:
        """Mean of squares [matrices * width]; 1 where nothing was seen, as llama.cpp has it."""
        seen = self.counts[:, None] > 0
        rows = np.where(seen, self.counts[:, None], 1.0).astype(np.float32)
        return np.where(seen, self.sums / rows, np.float32(1.0)).astype(np.float32).ravel()


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """``entries`` by the name of the weight tensor; ``text`` names what it was computed from, in
    ``chunks`` pieces of ``chunk_size`` tokens (0: not known)."""

    entries: Mapping[str, ImatrixEntry]
    text: str = ""
    chunks: int = 0
    chunk_size: int = 0


def is_matrix(path: Path) -> bool:
    """Whether the file claims to be a matrix and no text: a GGUF file, or bytes that no text has.

    Raises UsageError when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"--imatrix: {path} cannot be read: {error.strerror or error}") from error
    return head.startswith(b"GGUF") or b"\0" in head


def read_matrix(path: Path) -> ImportanceMatrix:
    """Read a matrix in either format. Raises UsageError for anything else, and for damage."""
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        matrix = _read_gguf(path) if is_gguf else _read_legacy(path.read_bytes())
    except (ModelError, ValueError, struct.error) as error:
        raise UsageError(f"{path} is not an importance matrix of llama.cpp: {error}") from error
    for name, entry in matrix.entries.items():
        if not np.isfinite(entry.sums).all() or not np.isfinite(entry.counts).all():
            raise UsageError(f"{path} is damaged: {name} holds values that are not numbers")
    return matrix


def columns_of(matrix: ImportanceMatrix) -> dict[str, Floats]:
    """Weights of the input channels [width] by tensors. Queries, keys and values have the same
    inputs: where they are tensors of their own, there is one of all three, too."""
    entries = matrix.entries.items()
    found = {name: entry.means for name, entry in entries if len(entry.counts) == 1}
    whole = {re.sub(r"\.attn_q\.", ".attn_qkv.", name): means for name, means in found.items()}
    return {**whole, **found}


def write_matrix(path: Path, matrix: ImportanceMatrix) -> None:
    """Write ``matrix`` in the GGUF format. The same matrix gives the same bytes."""
    metadata: dict[str, GgufValue] = {
        "general.type": "imatrix",
        "imatrix.datasets": [matrix.text],
        "imatrix.chunk_count": matrix.chunks,
        "imatrix.chunk_size": matrix.chunk_size,
    }
    arrays = {}
    for name, entry in sorted(matrix.entries.items()):
        arrays[name + _SUMS] = entry.sums
        arrays[name + _COUNTS] = entry.counts[:, None]
    shapes = {name: data.shape[::-1] for name, data in arrays.items()}
    head, _ = gguf_head(metadata, shapes, {})
    blobs = (data.astype("<f4").tobytes() for data in arrays.values())
    path.write_bytes(head + b"".join(blob + b"\0" * (-len(blob) % _ALIGNMENT) for blob in blobs))


def gguf_head(
    metadata: Mapping[str, GgufValue],
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, int],
) -> tuple[bytes, int]:
    """Header of a GGUF file, and the bytes of the data that follow: tensors with the ``shapes``
    (the length of a row first) in single precision, or in half where ``kinds`` has a 1."""
    table, offset = [], 0
    for name, shape in shapes.items():
        kind = kinds.get(name, _F32)
        sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table.append(_string(name) + sides + struct.pack("<IQ", kind, offset))
        size = math.prod(shape) * (2 if kind else 4)
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    head += b"".join(table)
    return head + b"\0" * (-len(head) % _ALIGNMENT), offset


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: GgufValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        texts = b"".join(map(_string, value))
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<II", _U32, value)


def _read_gguf(path: Path) -> ImportanceMatrix:
    header = read_header(path)
    tensors = {info.name: info for info in header.tensors}
    names = [name.removesuffix(_SUMS) for name in tensors if name.endswith(_SUMS)]
    if header.metadata.get("general.type") != "imatrix" and not names:
        raise ValueError("it is a GGUF file of another kind")
    data = np.memmap(path, np.uint8, "r")
    start = header.data_begins
    entries = {}
    for name in names:
        if name + _COUNTS not in tensors:
            raise ValueError(f"{name} has sums and no counts")
        counts = _tensor(data, start, tensors[name + _COUNTS])
        sums = _tensor(data, start, tensors[name + _SUMS])
        if not len(counts) or not len(sums) or len(sums) % len(counts):
            raise ValueError(f"{name} has {len(sums)} sums for {len(counts)} counts")
        entries[name] = ImatrixEntry(sums.reshape(len(counts), -1), counts)
    if not entries:
        raise ValueError("it holds no entries")
    return ImportanceMatrix(
        entries,
        chunks=header.whole("imatrix.chunk_count"),
        chunk_size=header.whole("imatrix.chunk_size"),
    )


def _tensor(data: Bytes, start: int, info: TensorInfo) -> Floats:
    if info.type_name != "F32":
        raise ValueError(f"{info.name} is of type {info.type_name}, not F32")
    begin = start + info.offset
    return np.array(data[begin : begin + info.nbytes]).view("<f4").astype(np.float32)


def _read_legacy(data: bytes) -> ImportanceMatrix:
    """Entries of name, calls, and means times calls; chunks and the text's name may be missing."""
    stream = io.BytesIO(data)

    def take(count: int) -> bytes:
        taken = stream.read(max(count, 0))
        if len(taken) != count:
            raise ValueError("it ends too early")
        return taken

    def number() -> int:
        return int.from_bytes(take(4), "little", signed=True)

    count = number()
    if not 0 < count <= _MOST_ENTRIES:
        raise ValueError(f"it begins with {count} entries")
    entries = {}
    for _ in range(count):
        length = number()
        if not 0 < length <= _LONGEST_NAME:
            raise ValueError(f"a tensor's name is {length} bytes long")
        name, calls, values = take(length).decode(), number(), number()
        if values < 1:
            raise ValueError(f"{name} has {values} values")
        sums = np.frombuffer(take(4 * values), "<f4").astype(np.float32)
        # No calls: the values are the means themselves.
        entries[name] = ImatrixEntry(sums[None], np.array([max(calls, 1)], np.float32))
    chunks = number() if stream.tell() < len(data) else 0
    text = take(number()).decode(errors="replace") if stream.tell() < len(data) else ""
    return ImportanceMatrix(entries, text, max(chunks, 0))
