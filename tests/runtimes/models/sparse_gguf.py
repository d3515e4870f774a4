"""GGUF files of any shape that take no room on disk: a true header over a hole of zeros."""

from __future__ import annotations

import struct
from pathlib import Path

_UINT32, _FLOAT32, _STRING = 4, 6, 8
_F32, _Q8_0 = 0, 8


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
    pairs = [_pair("general.architecture", arch), _pair("tokenizer.ggml.model", "no_vocab")]
    pairs += [_pair(f"{arch}.{key}", value) for key, value in numbers.items()]
    pairs.append(_pair(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5))
    tensors = [("token_embd", (hidden, vocab)), ("output_norm", (hidden,))]
    query, kv = heads * head_dim, kv_heads * head_dim
    for i in range(layers):
        tensors += [
            (f"blk.{i}.{name}", shape)
            for name, shape in {
                "attn_norm": (hidden,),
                "ffn_norm": (hidden,),
                "attn_q": (hidden, query),
                "attn_k": (hidden, kv),
                "attn_v": (hidden, kv),
                "attn_output": (query, hidden),
                "ffn_gate": (hidden, feed_forward),
                "ffn_up": (hidden, feed_forward),
                "ffn_down": (feed_forward, hidden),
                **(
                    {"attn_q_norm": (head_dim,), "attn_k_norm": (head_dim,)} if _norms(arch) else {}
                ),
                **(
                    {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
                    if arch.startswith("gemma")
                    else {}
                ),
            }.items()
        ]
    table, offset = bytearray(), 0
    for name, shape in tensors:
        kind = _Q8_0 if len(shape) == 2 and not floats else _F32
        table += _text(f"{name}.weight") + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        offset = _padded(offset + (count // 32 * 34 if kind == _Q8_0 else count * 4))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + table
    with path.open("wb") as file:
        file.write(head)
        file.truncate(_padded(len(head)) + offset)
    return path


def _norms(arch: str) -> bool:
    return arch in ("qwen3", "gemma3")


def _pair(key: str, value: str | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, float):
        return _text(key) + struct.pack("<If", _FLOAT32, value)
    return _text(key) + struct.pack("<II", _UINT32, value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(size: int) -> int:
    return -(-size // 32) * 32
