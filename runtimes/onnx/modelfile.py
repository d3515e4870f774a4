"""What a folder with an ONNX graph says of its model."""

from pathlib import Path
from typing import Any

from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG, ModelFile, read_json


def read_folder(folder: Path) -> ModelFile:
    """Describe a folder with an ONNX graph; raises ModelError."""
    if not (folder / GENAI_CONFIG).is_file():
        raise ModelError(
            f"{folder} is not an ONNX model folder: it has no {GENAI_CONFIG}. "
            "Build one with: quantize MODEL --to onnx"
        )
    model = read_json(folder / GENAI_CONFIG).get("model", {})
    decoder = model.get("decoder", {})
    recipe = folder.name.removeprefix("onnx-")  # as ``quantize`` names folders
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
            quantization=recipe if recipe != folder.name else "unknown",
            nbytes=sum(f.stat().st_size for f in folder.glob(graph.name + "*")),
            context_length=int(model["context_length"]),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=int(model["vocab_size"]),
            sliding_window=_window(decoder),
            chat_template=_chat_template(folder),
            kv_elements=2 * layers * kv_heads * head_dim,
            hidden=int(decoder.get("hidden_size", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / GENAI_CONFIG} lacks or garbles {error}") from error
    if graph.parent != folder or not graph.is_file():
        raise ModelError(f"{folder} has no graph {graph.name}")
    return described


def _window(decoder: dict[str, Any]) -> int | None:
    window = decoder.get("sliding_window")
    if isinstance(window, dict):
        window = window.get("window_size")
    return int(window) if window else None


def _chat_template(folder: Path) -> str | None:
    template = folder / "chat_template.jinja"
    if template.is_file():
        return template.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    value = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(value, list):  # several named templates: [{"name", "template"}]
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    return value if isinstance(value, str) else None
