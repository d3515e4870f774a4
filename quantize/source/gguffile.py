"""A GGUF file of 16- or 32-bit floats as the source of smaller GGUF files."""

import math
import re
from collections import Counter
from pathlib import Path

from quantize.errors import SourceError, UsageError
from quantize.source.model import SourceModel
from runtimes.errors import ModelError
from runtimes.models.gguf import read_header
from runtimes.models.gguf_split import named_parts

_FLOATS = frozenset({"F32", "F16", "BF16"})
_SUFFIX = re.compile(r"[-._](?:b?f16|f32|fp16|fp32)$", re.IGNORECASE)


def open_gguf(path: Path) -> SourceModel:
    """Look over the header of ``path``. Raises SourceError for a damaged file, and UsageError for
    one that is quantized already, is a part of a split model, or is no language model."""
    try:
        header = read_header(path)
    except ModelError as error:
        raise SourceError(str(error)) from error
    parts = int(header.metadata.get("split.count", 0))
    if parts > 1:
        raise UsageError(
            f"{path} is one of the {parts} parts of a split model; join them first with llama.cpp:"
            f" `llama-gguf-split --merge {named_parts(path)[0]} JOINED.gguf`"
        )
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not header.tensors:
        raise SourceError(f"{path} names no architecture, or holds no tensors")
    if any(len(t.shape) > 1 and t.type_name not in _FLOATS for t in header.tensors):
        types = Counter(tensor.type_name for tensor in header.tensors)
        kinds = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
        raise UsageError(
            f"{path} is quantized already: its {len(header.tensors)} tensors are {kinds}. Give the"
            " f16, bf16 or f32 file, or the original model"
        )
    if "tokenizer.ggml.tokens" not in header.array_lengths:
        raise UsageError(f"{path} has no vocabulary: it is not a language model by itself")
    return SourceModel(
        path.parent,
        architecture,
        (path,),
        sum(math.prod(tensor.shape) for tensor in header.tensors),
        name=_SUFFIX.sub("", path.stem) or path.stem,
        kind="gguf",
        bytes=path.stat().st_size,
        beside=path.resolve().parent,
    )
