"""How large a GGUF file of each type will be: llama.cpp says what type each tensor would get.

Its quantizer has a dry run, which reads the header of a half-precision file alone. For a model that
is not converted yet, a header with its shapes is written before a hole of the data's size.
"""

import math
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantize.gguf.quantize import run_quantizer
from quantize.recipes import FileSize
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, shapes_of, vocabulary_bytes
from runtimes.errors import ModelError
from runtimes.models.gguf import TENSOR_TYPES, read_header

_LINE = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[.*?type = +(\w+),.*?(?:\((\w+)\))?$", re.MULTILINE)
_BLOCKS = {name: (weights, size) for name, weights, size in TENSOR_TYPES.values()}
_ALIGNMENT = 32
_F32, _F16 = 0, 1
_UINT32, _FLOAT32, _STRING = 4, 6, 8
_PAIRS = 1500  # bytes of the metadata beside the vocabulary, about


def gguf_sizes(source: SourceModel, ftypes: Sequence[int]) -> dict[int, FileSize]:
    """By llama.cpp's ``enum llama_ftype``, without the types that it cannot give this model: one's
    blocks may be longer than its rows. Runs in a child process. Raises ModelError for a model that
    llama.cpp's quantizer does not understand."""
    if source.kind == "gguf":
        header = read_header(source.weights[0])
        shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        begin = header.data_bytes_expected - max(t.offset + t.nbytes for t in header.tensors)
        return _sizes(source.weights[0], shapes, begin, ftypes)
    found = shapes_of(source)
    tokens = found.weights.get("token_embd.weight", (0, 0))[-1]
    with tempfile.TemporaryDirectory(prefix="ingot-sizes-") as folder:
        path = Path(folder, "shapes.gguf")
        begin = _write_shapes(path, found)
        begin += vocabulary_bytes(source, tokens) + _PAIRS
        return _sizes(path, found.weights, begin, ftypes)


def _sizes(
    path: Path, shapes: Mapping[str, tuple[int, ...]], begin: int, ftypes: Sequence[int]
) -> dict[int, FileSize]:
    """``begin`` is where the data begin in the file."""
    count = sum(math.prod(shape) for shape in shapes.values())
    sizes, refused = {}, None
    for ftype in ftypes:
        try:
            types = _types(path, ftype)
        except ModelError as error:
            refused = error
            continue
        total = 0
        for name, kind in types.items():
            weights, size = _BLOCKS[kind]
            whole = math.prod(shapes[name]) // weights * size
            total += -(-whole // _ALIGNMENT) * _ALIGNMENT
        sizes[ftype] = FileSize(begin + total, total * 8 / count)
    if refused is not None and not sizes:
        raise refused
    return sizes


def _types(path: Path, ftype: int) -> dict[str, str]:
    """Each tensor's type in the file that would be made, by a dry run."""
    from llama_cpp import llama_cpp

    lib: Any = llama_cpp
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.allow_requantize = ftype, True, True
    code, said = run_quantizer(path, path.with_suffix(".none"), params)
    found = {name: (made or was).upper() for name, was, made in _LINE.findall("".join(said))}
    if code != 0 or not found:
        raise ModelError(f"llama.cpp cannot tell the sizes: {''.join(said[-2:]).strip()}")
    return found


def _write_shapes(path: Path, shapes: Shapes) -> int:
    """A header with these tensors, and a hole where their data would be; returns its length. To
    the quantizer it is a Llama: the types that it chooses go by the tensors' names."""
    rows = []
    heads = int(shapes.number("num_attention_heads", "n_head", default=1))
    embedding = shapes.weights.get("token_embd.weight", (heads,))[0]
    pairs: dict[str, int | float | str] = {
        "general.architecture": "llama",
        "general.file_type": _F16,
        "llama.context_length": int(shapes.number("max_position_embeddings", default=2048)),
        "llama.embedding_length": embedding,
        "llama.block_count": max(shapes.layers, 1),
        "llama.feed_forward_length": int(shapes.number("intermediate_size", default=4 * embedding)),
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": int(shapes.number("num_key_value_heads", default=heads)),
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": shapes.weights.get("token_embd.weight", (0, 0))[-1],
    }
    experts = shapes.number("num_local_experts", "num_experts")
    if experts:
        used = shapes.number("num_experts_per_tok", default=2)
        pairs |= {"llama.expert_count": int(experts), "llama.expert_used_count": int(used)}
    offset = 0
    for name, shape in shapes.weights.items():
        kind = _F16 if len(shape) > 1 else _F32
        sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        rows.append(_text(name) + sides + struct.pack("<IQ", kind, offset))
        size = math.prod(shape) * (2 if kind == _F16 else 4)
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(pairs))
    head += b"".join(_text(key) + _value(value) for key, value in pairs.items()) + b"".join(rows)
    begin = -(-len(head) // _ALIGNMENT) * _ALIGNMENT
    with path.open("wb") as file:
        file.write(head)
        file.truncate(begin + offset)
    return begin


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: int | float | str) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    return struct.pack("<II", _UINT32, value)
