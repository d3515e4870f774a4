"""What a GGUF file says of its model."""

from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader
from runtimes.models.gguf_layers import cache_shape
from runtimes.models.gguf_split import read_parts
from runtimes.models.modelfile import ModelFile


def read_gguf(path: Path) -> ModelFile:
    """Describe a GGUF file; raises ModelError."""
    header, parts = read_parts(path)
    meta = header.metadata
    arch = str(meta.get("general.architecture", ""))
    if not arch or not header.tensors:
        raise ModelError(f"{path} holds no model (no architecture or no tensors in its header)")

    def number(key: str, default: int) -> int:
        value = meta.get(f"{arch}.{key}", default)
        # A per-layer list (kv heads of mixed models): the largest bounds the cache.
        return int(max(value)) if isinstance(value, list) else int(value)

    heads = number("attention.head_count", 1)
    cache = cache_shape(arch, meta)
    # Where nothing is said of the experts' width (Mixtral), it is the layer's own.
    width = number("expert_feed_forward_length", number("feed_forward_length", 0))
    return ModelFile(
        path=path,
        runtime="llamacpp",
        name=path.stem,
        architecture=arch,
        quantization=_main_type(header),
        nbytes=sum(part.stat().st_size for part in parts),
        further=parts[1:],
        context_length=number("context_length", 2048),
        layers=number("block_count", 1),
        heads=heads,
        kv_heads=cache.heads,
        head_dim=cache.head_dim,
        vocab_size=header.array_lengths.get("tokenizer.ggml.tokens", number("vocab_size", 0)),
        sliding_window=number("attention.sliding_window", 0) or cache.window,
        chat_template=meta.get("tokenizer.chat_template"),
        kv_elements=cache.full,
        window_elements=cache.windowed,
        hidden=number("embedding_length", 0),
        feed_forward=max(number("feed_forward_length", 0), number("expert_used_count", 0) * width),
        merges=header.array_lengths.get("tokenizer.ggml.merges", 0),
        state=cache.state,
    )


def _main_type(header: GgufHeader) -> str:
    """The tensor type that holds the most bytes: what the file is called after."""
    totals: dict[str, int] = {}
    for tensor in header.tensors:
        totals[tensor.type_name] = totals.get(tensor.type_name, 0) + tensor.nbytes
    return max(totals, key=lambda name: totals[name])
