"""Codes of the weights in ggml's blocks, and files whose rounding errors are made up for. Runs in a
child process.

Formats: ``block_q4_0`` and the others of llama.cpp's ggml/src/ggml-common.h, and
``quantize_row_q4_0_ref`` and the like of ggml/src/ggml-quants.c.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from quantize.arrays import Array, Bytes, Floats
from quantize.children import counted
from quantize.gguf.ggml import packed, unpacked
from quantize.gguf.imatrixfile import read_matrix
from quantize.gptq import NORMS, Nearest, compensated
from runtimes.models.gguf import TENSOR_TYPES, read_header

COMPENSATED = "ingot.gptq"  # metadata of a file whose errors of rounding were made up for
# Of the types that follow a table, what its codes stand for, in scales.
_TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_FAR = 0.6  # steps: the nearest code is half a step away, but for what the scale was refitted
_FLOOR = np.float32(1e-3)  # of the mean: what a text does not ask for is rounded, too
_NEARLY = 0.02  # of a column's length: half precision, and a converter's sums


def _halves(first: Array, second: Array) -> Array:
    return first & 15 | (second & 15) << 4


def _nibbles(blocks: Bytes, codes: Bytes, at: int, run: int) -> None:
    """Low bits of the codes: a byte has those of two runs of so many codes."""
    pairs = codes.reshape(len(codes), -1, 2, run)
    blocks[:, at : at + codes.shape[1] // 2] = _halves(pairs[:, :, 0], pairs[:, :, 1]).reshape(
        len(codes), -1
    )


def _small(at: int, fifth: int | None = None) -> Callable[[Bytes, Bytes], None]:
    def put(blocks: Bytes, codes: Bytes) -> None:
        _nibbles(blocks, codes, at, 16)
        if fifth is not None:
            blocks[:, fifth : fifth + 4] = np.packbits(codes >> 4, axis=1, bitorder="little")

    return put


def _q4_k(blocks: Bytes, codes: Bytes) -> None:
    _nibbles(blocks, codes, 16, 32)


def _q5_k(blocks: Bytes, codes: Bytes) -> None:
    _nibbles(blocks, codes, 48, 32)
    high = (codes >> 4).reshape(len(codes), 8, 32)
    blocks[:, 16:48] = (high << np.arange(8, dtype=np.uint8)[:, None]).sum(axis=1, dtype=np.uint8)


def _q6_k(blocks: Bytes, codes: Bytes) -> None:
    parts = codes.reshape(len(codes), 2, 4, 32)
    low = _halves(parts[:, :, :2], parts[:, :, 2:])
    blocks[:, :128] = low.reshape(len(codes), -1)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = ((parts >> 4) << shifts).sum(axis=2, dtype=np.uint8)
    blocks[:, 128:192] = high.reshape(len(codes), -1)


def _iq4_xs(blocks: Bytes, codes: Bytes) -> None:
    _nibbles(blocks, codes, 8, 16)


# Types whose codes can be chosen one by one: what puts codes [blocks, weights] into blocks [blocks,
# bytes], and how many codes there are.
_WRITERS: dict[str, tuple[Callable[[Bytes, Bytes], None], int]] = {
    "q4_0": (_small(2), 16),
    "q4_1": (_small(4), 16),
    "q5_0": (_small(6, fifth=2), 32),
    "q5_1": (_small(8, fifth=4), 32),
    "iq4_nl": (_small(2), 16),
    "q4_k": (_q4_k, 16),
    "q5_k": (_q5_k, 32),
    "q6_k": (_q6_k, 64),
    "iq4_xs": (_iq4_xs, 16),
}
_OF_TABLE = ("iq4_nl", "iq4_xs")
_ONE = 8  # the code that stands for 1 there
_BLOCKS = {name.lower(): (weights, size) for name, weights, size in TENSOR_TYPES.values()}


def put_codes(blocks: Bytes, codes: Bytes, kind: str) -> None:
    """Give ``blocks`` [blocks, bytes] of the type ``kind`` other ``codes`` [blocks, weights]."""
    _WRITERS[kind][0](blocks, codes)


def steps_of(blocks: Bytes, kind: str) -> tuple[Floats, Floats]:
    """Scale and offset [blocks, weights] of each weight of ``blocks`` [blocks, bytes]: a code
    stands for offset + scale * code, or of the types with a table for scale * what that has."""
    tried, width = blocks.copy(), _BLOCKS[kind][0]
    codes = np.full((len(blocks), width), _ONE if kind in _OF_TABLE else 0, np.uint8)
    put_codes(tried, codes, kind)
    offset = unpacked(tried, kind, width)
    if kind in _OF_TABLE:
        return offset, np.zeros_like(offset)
    put_codes(tried, codes + np.uint8(1), kind)
    return unpacked(tried, kind, width) - offset, offset


def moved_share(stored: Bytes, kind: str, original: Floats) -> float | None:
    """Share of the weights of rows ``stored`` [rows, bytes] that lie further from the ``original``
    [rows, width] than rounding to the nearest code puts them; None of other types."""
    if kind not in _WRITERS:
        return None
    width, size = _BLOCKS[kind]
    blocks = np.ascontiguousarray(stored).reshape(-1, size)
    scales, _ = steps_of(blocks, kind)
    steps, x = np.abs(scales), original.reshape(scales.shape)
    if kind in _OF_TABLE:
        within = np.searchsorted(_TABLE, x / np.where(scales == 0, 1, scales))
        steps = steps * np.diff(_TABLE)[np.clip(within - 1, 0, len(_TABLE) - 2)]
    return float(np.mean(np.abs(unpacked(blocks, kind, width) - x) > _FAR * steps))


def round_compensated(weight: Floats, kind: str, moments: Floats, means: Floats) -> Bytes:
    """``weight`` [rows, width] as a file has it in the type ``kind``, one of ``_WRITERS``;
    ``moments`` are those of `compensated`, ``means`` as `packed` has them."""
    block, size = _BLOCKS[kind]
    means = np.maximum(means, _FLOOR * means.mean())
    blocks = np.empty((len(weight), weight.shape[1] // block, size), np.uint8)
    most = _WRITERS[kind][1] - 1

    def begin(at: int, part: Floats) -> Nearest:
        found = packed(part, kind, means[at * block : (at + 1) * block])
        blocks[:, at] = found.reshape(len(part), size)
        scales, offsets = steps_of(blocks[:, at], kind)
        inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)

        def nearest(x: Floats, place: int) -> tuple[Array, Floats]:
            scale, offset = scales[:, place], offsets[:, place]
            wanted = (x - offset) * inverse[:, place]
            if kind in _OF_TABLE:
                code = np.abs(wanted[:, None] - _TABLE).argmin(axis=1)
                return code, scale * _TABLE[code]
            code = np.clip(np.rint(wanted), 0, most)
            return code, offset + scale * code

        return nearest

    codes = compensated(weight, moments, block, begin)
    flat = blocks.reshape(-1, size)
    put_codes(flat, codes.reshape(-1, block), kind)
    return flat.ravel()


def compensate_file(path: Path, export: Path, moments: Path, matrix: Path | None) -> int:
    """Round the tensors of ``path``, a GGUF file that was made of the half-precision ``export``,
    anew in their types, in place, where the folder ``moments`` (of `write_moments`) knows their
    inputs; returns how many there were. The importance ``matrix`` weighs scales."""
    mine, theirs = read_header(path), read_header(export)
    floats = {one.name: one for one in theirs.tensors}
    entries = read_matrix(matrix).entries if matrix else {}
    norms = np.load(moments / NORMS)
    written = np.memmap(path, np.uint8, "r+", offset=mine.data_begins)
    source = np.memmap(export, np.uint8, "r", offset=theirs.data_begins)
    done = 0
    for one in counted(mine.tensors, "tensors"):
        known, kind = moments / f"{one.name}.npy", one.type_name.lower()
        if kind not in _WRITERS or not known.is_file() or one.name not in norms:
            continue
        width, of = one.shape[0], floats[one.name]
        stored = source[of.offset : of.offset + of.nbytes].reshape(-1, of.nbytes // of.shape[-1])
        weight = unpacked(stored, of.type_name.lower(), width)
        lengths, expected = np.linalg.norm(weight, axis=0), norms[one.name]
        near = {"rtol": _NEARLY, "atol": _NEARLY * lengths.max()}
        if lengths.shape != expected.shape or not np.allclose(lengths, expected, **near):
            continue  # the converter has put its columns in another order, or has others
        sums = np.load(known)
        entry = entries.get(one.name)
        fits = entry is not None and entry.means.size == width
        means = entry.means if entry and fits else np.diagonal(sums)
        made = round_compensated(weight, kind, sums, np.ascontiguousarray(means, np.float32))
        written[one.offset : one.offset + one.nbytes] = made
        done += 1
    written.flush()
    return done
