"""Make the tiny model of llama.cpp's self-test: run when its shape has to change.

    python -m tests.runtimes.machine.tiny_gguf
    python -m runtimes.machine.selftest_child llamacpp --record

Its tensors are random and cover the quantized kernels that can go wrong. Its bytes are the same
everywhere, since they come from a hash function.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtimes.models.registry import backend
from tests.fuzz.headers import Gguf
from tests.runtimes.models.sparse_gguf import padded, said

_VOCABULARY, _CONTEXT = 64, 128
_HIDDEN, _FFN, _HEADS, _KV_HEADS = 256, 256, 4, 2
_KV_WIDTH = _HIDDEN // _HEADS * _KV_HEADS

Bytes = npt.NDArray[np.uint8]

# Of each type: its id in GGUF, the weights of a block, and its parts: so many random bytes, a
# float16 of so many times the spread of the weights, or (negative) so many small scales of both
# signs, as a real file has them.
_TYPES: dict[str, tuple[int, int, tuple[int | float, ...]]] = {
    "Q4_0": (2, 32, (1 / 4.6, 16)),
    "Q4_1": (3, 32, (1 / 4.6, -7.5 / 4.6, 16)),
    "Q8_0": (8, 32, (1 / 74, 32)),
    "Q4_K": (12, 256, (1 / 170, 7.5 / 170, 140)),  # scales, then quants
    "Q5_K": (13, 256, (1 / 340, 15.5 / 340, 172)),  # scales, high bits, low bits
    "Q6_K": (14, 256, (192, -16, 1 / 170)),  # low bits, high bits, scales
}
_IDS = {"F32": 0, "F16": 1, **{name: id for name, (id, *_) in _TYPES.items()}}
# Every type stands where its rows are long enough for its blocks.
_MATRICES = (
    ("attn_q", "Q4_0", _HIDDEN, _HIDDEN),
    ("attn_k", "Q8_0", _KV_WIDTH, _HIDDEN),
    ("attn_v", "F16", _KV_WIDTH, _HIDDEN),
    ("attn_output", "Q5_K", _HIDDEN, _HIDDEN),
    ("ffn_gate", "Q4_K", _FFN, _HIDDEN),
    ("ffn_up", "Q4_1", _FFN, _HIDDEN),
    ("ffn_down", "Q6_K", _HIDDEN, _FFN),
)


def write_tiny_gguf(path: Path, **changed: int) -> None:
    """Write the model, 0.3 MB. ``changed`` are values of the metadata by the end of their keys."""
    pairs = []
    for key, usual in _METADATA.items():
        value = changed.get(key.rpartition(".")[2], usual)
        form = "f" if isinstance(value, float) else "I"
        pairs.append((key.encode(), *said(value if isinstance(value, str) else (form, value))))
    tensors, body = [], b""
    for name, kind, shape, data in _tensors():
        # GGUF lists the fastest dimension first.
        tensors.append((name.encode(), shape[::-1], _IDS[kind], len(body)))
        body += data.ljust(padded(len(data)), b"\0")
    head = Gguf(pairs, tensors).encoded()
    path.write_bytes(head.ljust(padded(len(head)), b"\0") + body)


_METADATA: dict[str, str | int | float] = {
    "general.architecture": "llama",
    "general.name": "ingot-selftest",
    "llama.context_length": _CONTEXT,
    "llama.embedding_length": _HIDDEN,
    "llama.block_count": 1,
    "llama.feed_forward_length": _FFN,
    "llama.attention.head_count": _HEADS,
    "llama.attention.head_count_kv": _KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": _HIDDEN // _HEADS,
    "llama.vocab_size": _VOCABULARY,
    "tokenizer.ggml.model": "no_vocab",
}


def _tensors() -> list[tuple[str, str, tuple[int, ...], bytes]]:
    ones = np.ones(_HIDDEN, np.float32).tobytes()
    found: list[tuple[str, str, tuple[int, ...], bytes]] = [
        _matrix("token_embd.weight", "F16", _VOCABULARY, _HIDDEN)
    ]
    for name in ("attn_norm", "ffn_norm"):
        found.append((f"blk.0.{name}.weight", "F32", (_HIDDEN,), ones))
    for name, kind, rows, columns in _MATRICES:
        found.append(_matrix(f"blk.0.{name}.weight", kind, rows, columns))
    found.append(("output_norm.weight", "F32", (_HIDDEN,), ones))
    found.append(_matrix("output.weight", "Q6_K", _VOCABULARY, _HIDDEN))
    return found


def _matrix(
    name: str, kind: str, rows: int, columns: int
) -> tuple[str, str, tuple[int, ...], bytes]:
    """Random weights that spread around 1 / sqrt(columns), so that activations stay near 1."""
    scale = columns**-0.5
    if kind == "F16":
        uniform = _random(name, rows * columns).astype(np.float32) / 255 - 0.5
        data = (uniform * np.float32(scale * 12**0.5)).astype(np.float16).tobytes()
    else:
        data = _blocks(name, kind, rows * columns, scale)
    return name, kind, (rows, columns), data


def _blocks(name: str, kind: str, count: int, scale: float) -> bytes:
    _, size, parts = _TYPES[kind]
    columns: list[Bytes] = []
    for part in parts:
        if isinstance(part, float):
            column = np.full((count // size, 1), part * scale, np.float16).view(np.uint8)
        elif part > 0:
            column = _random(name, count // size * part)
        else:
            column = (_random(name + ".scales", count // size * -part) % 32 - 16).astype(np.uint8)
        columns.append(column.reshape(count // size, -1))
    return np.concatenate(columns, axis=1).tobytes()


def _random(name: str, count: int) -> Bytes:
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(count), np.uint8)


if __name__ == "__main__":
    write_tiny_gguf(backend("llamacpp").selftest)
