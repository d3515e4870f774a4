"""``ModelFile``: what is on disk, read without loading a runtime."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader
from runtimes.models.gguf_layers import cache_shape
from runtimes.models.gguf_split import read_parts
from runtimes.models.gguf_state import StateShape

RuntimeName = Literal["llamacpp", "onnx"]

# The graph's settings as onnxruntime-genai's builder writes them beside it.
GENAI_CONFIG = "genai_config.json"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file, or a folder with an ONNX graph, and what its metadata says of the model.

    ``path`` is the .gguf file or the ONNX folder; ``nbytes`` all bytes that the runtime reads;
    ``sliding_window`` is None for full attention. ``kv_elements`` and ``window_elements`` are the
    elements of keys and values that a token adds to the layers that keep every token, and to those
    that keep the window only. ``feed_forward`` is the widest activation of a layer for one token
    (of a mixture, over the experts that it uses); 0 where the metadata does not say. ``merges``
    is the number of the tokenizer's merge rules where known. ``state`` is what recurrent layers
    keep of a whole sequence.
    """

    path: Path
    runtime: RuntimeName
    name: str
    architecture: str
    quantization: str
    nbytes: int
    context_length: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    sliding_window: int | None
    chat_template: str | None = field(repr=False)
    kv_elements: int = 0
    window_elements: int = 0
    hidden: int = 0
    feed_forward: int = 0
    merges: int = 0
    state: StateShape | None = None
    further: tuple[Path, ...] = ()  # a split model's other files

    @classmethod
    def read(cls, path: str | Path) -> ModelFile:
        """Describe the model at ``path``; raises ModelError if there is none, or it is damaged."""
        path = Path(path)
        if path.is_dir():
            return _read_onnx(path)
        if not path.exists():
            raise ModelError(f"there is no model at {path}")
        if path.suffix == ".onnx":
            return _read_onnx(path.parent)
        return _read_gguf(path)

    def kv_bytes_per_token(self, element_bytes: float) -> int:
        """Bytes of keys and values that one token occupies over all layers, windows not counted."""
        return int((self.kv_elements + self.window_elements) * element_bytes)


def _read_gguf(path: Path) -> ModelFile:
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``; raises ModelError naming the file when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def _read_onnx(folder: Path) -> ModelFile:
    if not (folder / GENAI_CONFIG).is_file():
        raise ModelError(
            f"{folder} is not an ONNX model folder: it has no {GENAI_CONFIG}. "
            "Build one with: quantize MODEL --to onnx"
        )
    model = read_json(folder / GENAI_CONFIG).get("model", {})
    decoder = model.get("decoder", {})
    try:
        graph = folder / str(decoder["filename"])
        heads = int(decoder["num_attention_heads"])
        kv_heads = int(decoder.get("num_key_value_heads", heads))
        layers, head_dim = int(decoder["num_hidden_layers"]), int(decoder["head_size"])
        described = ModelFile(
            path=folder,
            runtime="onnx",
            name=folder.name,
            architecture=str(model.get("type", "")),
            quantization=_onnx_quantization(folder),
            nbytes=sum(f.stat().st_size for f in folder.glob(graph.name + "*")),
            context_length=int(model["context_length"]),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=int(model["vocab_size"]),
            sliding_window=_onnx_window(decoder),
            chat_template=_onnx_chat_template(folder),
            kv_elements=2 * layers * kv_heads * head_dim,
            hidden=int(decoder.get("hidden_size", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / GENAI_CONFIG} lacks or garbles {error}") from error
    if graph.parent != folder or not graph.is_file():
        raise ModelError(f"{folder} has no graph {graph.name}")
    return described


def _onnx_quantization(folder: Path) -> str:
    """The recipe that the folder is named after, as ``quantize`` names it; else unknown."""
    return folder.name.removeprefix("onnx-") if folder.name.startswith("onnx-") else "unknown"


def _onnx_window(decoder: dict[str, Any]) -> int | None:
    window = decoder.get("sliding_window")
    if isinstance(window, dict):
        window = window.get("window_size")
    return int(window) if window else None


def _onnx_chat_template(folder: Path) -> str | None:
    template = folder / "chat_template.jinja"
    if template.is_file():
        return template.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    value = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(value, list):  # several named templates: [{"name", "template"}]
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    return value if isinstance(value, str) else None
