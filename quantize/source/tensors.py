"""The tensor tables of safetensors files: whole files, and shapes that fit the configuration."""

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.errors import SourceError

_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library itself
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_EMBEDDING = re.compile(
    r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight"
)
_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.(\d+)\.")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_VOCABULARY = ("vocab_size",)
_DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry of the table: safetensors' name of its type, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; raises SourceError unless the file is whole.

    Format: 8 bytes of header length, a JSON header with the tensors' offsets, the tensors
    (huggingface/safetensors, "Format" of its README).
    """
    size = path.stat().st_size
    damaged = f"{path} is damaged"
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 2 <= length <= _LONGEST_HEADER or 8 + length > size:
            raise SourceError(f"{damaged}: it is not a safetensors file, or ends within its header")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            entries = {name: info for name, info in header.items() if name != "__metadata__"}
            end = max((int(info["data_offsets"][1]) for info in entries.values()), default=0)
            tensors = {
                name: Tensor(str(info["dtype"]), tuple(int(n) for n in info["shape"]))
                for name, info in entries.items()
            }
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise SourceError(f"{damaged}: its header cannot be read ({error})") from error
    if 8 + length + end != size:
        raise SourceError(
            f"{path} is {'truncated' if size < 8 + length + end else 'damaged'}: {size:,} bytes,"
            f" its header promises {8 + length + end:,}; download it again"
        )
    if not tensors:
        raise SourceError(f"{path} holds no tensors")
    return tensors


def require_floats(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise SourceError for a model that is quantized already: its loss would be built upon, and
    converters read most such forms wrongly or not at all."""
    method = config.get("quantization_config")
    if isinstance(method, Mapping):
        kind = method.get("quant_method", "quantization_config in its config.json")
        raise SourceError(
            f"{folder} is quantized already ({kind}); give the original model in 16 or 32 bits"
        )
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS and len(tensor.shape) >= 2 and name.endswith("weight"):
            raise SourceError(
                f"{folder}: the tensor {name} is of type {tensor.dtype}; give the original model in"
                " 16 or 32 bits"
            )


def require_agreement(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Raise SourceError when config.json describes another model than the weights are.

    Compared are the embedding's rows and columns with the vocabulary and hidden size, and the
    number of layers. What a configuration does not say, or says in another way, is not compared.
    """
    text = config.get("text_config")
    settings = {**config, **text} if isinstance(text, Mapping) else dict(config)
    found = [t for name, t in tensors.items() if _EMBEDDING.fullmatch(name) and len(t.shape) == 2]
    if len(found) == 1:
        rows, width = found[0].shape
        # Some models have a narrower embedding and a projection behind it.
        narrow = settings.get("embedding_size") or settings.get("word_embed_proj_dim")
        wanted = narrow if isinstance(narrow, int) else _first(settings, _WIDTH)
        _compare(folder, "hidden size", wanted, width, "the embedding's columns")
        _compare(folder, "vocabulary", _first(settings, _VOCABULARY), rows, "the embedding's rows")
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    depth = _first(settings, _DEPTH)
    # More are there in models with extra layers for multi-token prediction, or with an encoder.
    if depth is not None and layers and len(layers) < depth:
        missing = sorted(set(range(depth)) - layers)
        raise SourceError(
            f"{folder}: config.json says {depth} layers, the weights have {len(layers)}; layer"
            f" {missing[0]} is not there. One of the two belongs to another model"
        )


def _compare(folder: Path, what: str, says: int | None, has: int, where: str) -> None:
    if says is not None and says != has:
        raise SourceError(
            f"{folder}: config.json says {what} {says:,}, {where} are {has:,}; one of the two"
            " belongs to another model"
        )


def _first(settings: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (settings.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)
