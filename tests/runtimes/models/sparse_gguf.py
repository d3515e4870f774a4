"""GGUF files of any shape that take no room on disk: a true header over a hole of zeros."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.fuzz.headers import Gguf

_F32, _Q8_0 = 0, 8
_FORMS = {"B": 0, "b": 1, "H": 2, "I": 4, "i": 5, "f": 6, "Q": 10, "q": 11, "d": 12}


def said(value: Any) -> tuple[int, bytes]:
    """A GGUF value: a pair is a number's form and the number, lists are arrays."""
    match value:
        case (str(form), number) if isinstance(value, tuple):
            return _FORMS[form], struct.pack("<" + form, number)
        case bool():
            return 7, bytes([value])
        case bytes() | str():
            raw = value.encode() if isinstance(value, str) else value
            return 8, struct.pack("<Q", len(raw)) + raw
        case []:
            return 9, struct.pack("<IQ", 4, 0)
        case [*values]:
            parts = [said(one) for one in values]
            return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(p for _, p in parts)
    raise AssertionError(value)


def padded(size: int) -> int:
    return -(-size // 32) * 32


def write_sparse_gguf(
    path: Path,
    arch: str,
    *,
    hidden: int,
    feed_forward: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    extra: dict[str, int] | None = None,
    floats: bool = False,
) -> Path:
    """A model of zeros that llama.cpp opens, its weights in 8 bits or floats; ``extra`` is more
    metadata below the architecture."""
    numbers = {
        "context_length": 32768,
        "embedding_length": hidden,
        "block_count": layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "vocab_size": vocab,
        **(extra or {}),
    }
    values: dict[str, Any] = {"general.architecture": arch, "tokenizer.ggml.model": "no_vocab"}
    values |= {f"{arch}.{key}": ("I", value) for key, value in numbers.items()}
    values[f"{arch}.attention.layer_norm_rms_epsilon"] = ("f", 1e-5)
    tensors: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd", (hidden, vocab)),
        ("output_norm", (hidden,)),
    ]
    query, kv = heads * head_dim, kv_heads * head_dim
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "attn_q": (hidden, query),
        "attn_k": (hidden, kv),
        "attn_v": (hidden, kv),
        "attn_output": (query, hidden),
        "ffn_gate": (hidden, feed_forward),
        "ffn_up": (hidden, feed_forward),
        "ffn_down": (feed_forward, hidden),
    }
    if arch in ("qwen3", "gemma3"):
        block |= {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)}
    if arch.startswith("gemma"):
        block |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    tensors += [(f"blk.{i}.{name}", shape) for i in range(layers) for name, shape in block.items()]
    found, offset = list[tuple[bytes, tuple[int, ...], int, int]](), 0
    for name, shape in tensors:
        kind = _Q8_0 if len(shape) == 2 and not floats else _F32
        found.append((f"{name}.weight".encode(), shape, kind, offset))
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        offset = padded(offset + (count // 32 * 34 if kind == _Q8_0 else count * 4))
    head = Gguf([(key.encode(), *said(value)) for key, value in values.items()], found).encoded()
    with path.open("wb") as file:
        file.write(head)
        file.truncate(padded(len(head)) + offset)
    return path
