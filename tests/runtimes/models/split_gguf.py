"""Cuts a GGUF file into parts, as llama.cpp's gguf-split does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtimes.models.gguf import read_header
from tests.fuzz.headers import Gguf
from tests.runtimes.models.sparse_gguf import padded, said


def split_gguf(path: Path, folder: Path, counts: Sequence[int], name: str = "model") -> list[Path]:
    """Parts of so many tensors each; all that are left are in one more."""
    data, whole = path.read_bytes(), Gguf.read(path, most=2**32)
    start = padded(len(whole.encoded()))
    sizes = [tensor.nbytes for tensor in read_header(path).tensors]
    left = list(zip(whole.tensors, sizes, strict=True))
    shares = [[left.pop(0) for _ in range(count)] for count in counts] + [left]
    parts = []
    for number, share in enumerate(shares):
        marks = {
            b"split.no": ("H", number),
            b"split.count": ("H", len(shares)),
            b"split.tensors.count": ("i", len(sizes)),
        }
        pairs = whole.pairs if number == 0 else []
        pairs = [*pairs, *((key, *said(value)) for key, value in marks.items())]
        tensors, body = [], b""
        for (tensor, shape, kind, offset), size in share:
            tensors.append((tensor, shape, kind, len(body)))
            body += data[start + offset : start + offset + size].ljust(padded(size), b"\0")
        head = Gguf(pairs, tensors).encoded()
        part = folder / f"{name}-{number + 1:05}-of-{len(shares):05}.gguf"
        part.write_bytes(head.ljust(padded(len(head)), b"\0") + body)
        parts.append(part)
    return parts
