"""Faults that files of other people may have, planted into a good GGUF file."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from runtimes.models.gguf import TENSOR_TYPES, read_header

_SIZES = {name: size for name, _, size in TENSOR_TYPES.values()}
_TENSOR = "blk.2.attn_k.weight"


def _blocks(path: Path, name: str) -> tuple[np.memmap, int]:
    """A tensor's blocks [blocks, bytes] as they lie in the file, and how many make a row."""
    header = read_header(path)
    data = np.memmap(path, np.uint8, "r+", offset=header.data_begins)
    info = next(tensor for tensor in header.tensors if tensor.name == name)
    found = data[info.offset : info.offset + info.nbytes].reshape(-1, _SIZES[info.type_name])
    return found, len(found) // info.shape[1]


def _setting(path: Path, key: str, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4  # its type
    assert data[at : at + len(old)] == old
    path.write_bytes(data[:at] + new + data[at + len(old) :])


def _scales(path: Path) -> None:
    blocks, _ = _blocks(path, _TENSOR)
    blocks[:, :2] = np.random.default_rng(0).permutation(blocks[:, :2])


def _shift(path: Path) -> None:
    blocks, _ = _blocks(path, _TENSOR)
    blocks[:] = np.roll(blocks, 1, axis=0)


def _one_block(path: Path) -> None:
    blocks, _ = _blocks(path, _TENSOR)
    blocks[7] = blocks[8]


def _rows(path: Path) -> None:
    blocks, per = _blocks(path, "token_embd.weight")
    rows = blocks.reshape(-1, per * blocks.shape[1])
    rows[[300, 301]] = rows[[301, 300]]


def _rope(path: Path) -> None:
    _setting(path, "llama.rope.freq_base", struct.pack("<f", 1e4), struct.pack("<f", 2e4))


def _bos(path: Path) -> None:
    _setting(path, "tokenizer.ggml.add_bos_token", b"\1", b"\0")


def _space(path: Path) -> None:
    _setting(path, "tokenizer.ggml.add_space_prefix", b"\0", b"\1")


def _template(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"'<|end|>", data.index(b"tokenizer.chat_template"))
    path.write_bytes(data[:at] + b"'<|emd|>" + data[at + 8 :])


# What is planted, and how the finding begins.
PLANTED: dict[str, tuple[Callable[[Path], None], str]] = {
    "scales of a tensor": (_scales, "weights: blk.2.attn_k.weight"),
    "a tensor shifted by a block": (_shift, "weights: blk.2.attn_k.weight"),
    "a block of another place": (_one_block, "weights: blk.2.attn_k.weight"),
    "two rows of the vocabulary": (_rows, "weights: token_embd.weight"),
    "rope base": (_rope, "settings: llama.rope.freq_base"),
    "no BOS": (_bos, "tokens: "),
    "how text is split": (_space, "tokens: "),
    "chat template": (_template, "chat template: "),
}


def plant(name: str, good: Path, folder: Path) -> Path:
    """A copy of ``good`` with the fault."""
    path = folder / f"{name}.gguf"
    shutil.copy(good, path)
    PLANTED[name][0](path)
    return path
