"""The frame around one slot's saved keys and values: what they are of, how long, and a checksum.

Layout, little-endian, then the payload in the runner's own format::

    8 s  magic          "INGOTKV" and a zero byte
    u32  version        of this layout and of the payloads'
    12 s runtime        its name, padded with zero bytes
    8 s  kv_type        "f16", "q8_0", "q4_0" or "f32"
    u32  bytes_per_token  over all layers
    u32  vocab_size
    u32  length         tokens
    u32  crc32          of the payload (zlib's)
    u64  payload bytes
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from runtimes.errors import ModelError

_MAGIC = b"INGOTKV\0"
_VERSION = 1
_HEADER = struct.Struct("<8sI12s8sIIIIQ")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class KvKind:
    """What two runners must have in common for one to take the other's keys and values."""

    runtime: str
    kv_type: str
    bytes_per_token: int
    vocab_size: int

    def __str__(self) -> str:
        return (
            f"{self.runtime}, {self.kv_type}, {self.bytes_per_token} bytes a token, "
            f"{self.vocab_size} token ids"
        )


def header(kind: KvKind, length: int, payload: Iterable[memoryview]) -> bytes:
    """The header for a payload that is given in pieces, each contiguous bytes."""
    crc = size = 0
    for piece in payload:
        crc = zlib.crc32(piece, crc)
        size += piece.nbytes
    return _HEADER.pack(
        _MAGIC,
        _VERSION,
        kind.runtime.encode(),
        kind.kv_type.encode(),
        kind.bytes_per_token,
        kind.vocab_size,
        length,
        crc,
        size,
    )


def unwrap(data: bytes, kind: KvKind) -> tuple[int, memoryview]:
    """The length in tokens and the payload; raises ModelError unless it is whole and of ``kind``.

    The view keeps ``data`` alive.
    """
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise ModelError("this is not a saved slot of keys and values")
    _, version, runtime, kv_type, token_bytes, vocab, length, crc, size = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ModelError(
            f"these keys and values were saved in format {version}, this Ingot reads "
            f"{_VERSION}; compute them again"
        )
    saved = KvKind(
        runtime.rstrip(b"\0").decode(errors="replace"),
        kv_type.rstrip(b"\0").decode(errors="replace"),
        token_bytes,
        vocab,
    )
    if saved != kind:
        raise ModelError(f"these keys and values are of another model ({saved}; here: {kind})")
    payload = memoryview(data)[HEADER_BYTES:]
    if payload.nbytes != size or zlib.crc32(payload) != crc:
        raise ModelError(
            f"the saved keys and values are damaged ({payload.nbytes} bytes, {size} were saved)"
        )
    return length, payload
