"""How many bits a built file stores for a weight, which is more than its name says."""

from __future__ import annotations

import math
from pathlib import Path

from runtimes.gguf import GgufHeader, read_header
from runtimes.memory_onnx import graph_of
from runtimes.modelfile import ModelFile


def gguf_bits(header: GgufHeader) -> float:
    """Of all tensors of a GGUF file together, scales included."""
    weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
    return sum(tensor.nbytes for tensor in header.tensors) * 8 / weights


def bits_per_weight(path: Path, parameters: int) -> float:
    """Of the GGUF file or ONNX folder ``path``; what a graph stores is divided by the model's
    ``parameters``, because packed weights cannot be counted. Raises ModelError."""
    if path.is_file():
        return gguf_bits(read_header(path))
    graph = graph_of(ModelFile.read(path))
    return sum(tensor.nbytes for tensor in graph.initializers.values()) * 8 / parameters
