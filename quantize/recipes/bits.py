"""How many bits a built file stores for a weight, which is more than its name says."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader, read_header
from runtimes.models.registry import read_model
from runtimes.onnx.memory import graph_of

# Sines and cosines of every position, which the builder computes: no weights of the model.
_TABLE = re.compile(r"(?:cos|sin)_cache")


@dataclass(frozen=True, slots=True)
class FileSize:
    """What a file has, or will have: all its bytes, and bits a weight, scales included."""

    bytes: int
    bits_per_weight: float


def gguf_bits(header: GgufHeader) -> float:
    """Of all tensors of a GGUF file together, scales included. Raises ModelError if none has any
    weights."""
    weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    if not weights:
        raise ModelError(f"{header.where} holds no weights")
    return sum(tensor.nbytes for tensor in header.tensors) * 8 / weights


def bits_per_weight(path: Path, parameters: int) -> float:
    """Of the GGUF file or ONNX folder ``path``; what a graph stores of them is divided by the
    model's ``parameters``, because packed weights cannot be counted. Raises ModelError."""
    if path.is_file():
        return gguf_bits(read_header(path))
    graph = graph_of(read_model(path))
    weights = (
        tensor.nbytes for name, tensor in graph.initializers.items() if not _TABLE.match(name)
    )
    return sum(weights) * 8 / parameters
