"""Model description from a folder with an ONNX graph."""

import glob
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.gguf import MOST_TEXT
from runtimes.models.modelfile import GENAI_CONFIG, ModelFile, read_json, reading
from runtimes.onnx.graph_file import WIDE, decoder_of, genai_section
from runtimes.untrusted import check_whole, open_regular

_MOST_LAYERS = 1024


def read_folder(folder: Path) -> ModelFile:
    """Describe a folder with an ONNX graph; raises ModelError."""
    if not (folder / GENAI_CONFIG).is_file():
        raise ModelError(
            f"{folder} is not an ONNX model folder: it has no {GENAI_CONFIG}. "
            "Build one with: quantize MODEL --to onnx"
        )
    decoder = decoder_of(folder)
    said = {**genai_section(folder, "model"), **decoder}
    graph = folder / decoder["filename"]
    if not graph.is_file():
        raise ModelError(f"{folder} has no graph {graph.name}")
    recipe = folder.name.removeprefix("onnx-")  # as ``quantize`` names folders

    if isinstance(window := said.get("sliding_window"), dict):
        said["sliding_window"] = window.get("window_size")

    def whole(key: str, least: int = 0, most: int = 2**32 - 1, default: int | None = None) -> int:
        value = default if said.get(key) is None else said[key]
        return check_whole(value, f"{folder / GENAI_CONFIG}: {key}", least, most)

    heads = whole("num_attention_heads", 1)
    kv_heads = whole("num_key_value_heads", default=heads)
    layers = whole("num_hidden_layers", 1, _MOST_LAYERS)
    head_dim = whole("head_size")
    architecture = said.get("type", "")
    with reading(folder):
        return ModelFile(
            path=folder,
            runtime="onnx",
            name=folder.name,
            architecture=architecture if isinstance(architecture, str) else "",
            quantization=recipe if recipe != folder.name else "unknown",
            nbytes=sum(
                file.stat().st_size
                for name in {graph.name, WIDE}
                for file in folder.glob(glob.escape(name) + "*")
            ),
            context_length=whole("context_length", 1),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=whole("vocab_size"),
            sliding_window=max(whole("sliding_window", -1, default=0), 0) or None,
            chat_template=_chat_template(folder),
            kv_elements=2 * layers * kv_heads * head_dim,
            hidden=whole("hidden_size", default=0),
        )


def _chat_template(folder: Path) -> str | None:
    template = folder / "chat_template.jinja"
    if template.is_file():
        return _text(template)
    config = folder / "tokenizer_config.json"
    value = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(value, list):  # several named templates: [{"name", "template"}]
        named = (entry for entry in value if isinstance(entry, dict))
        value = next((one.get("template") for one in named if one.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(MOST_TEXT + 1)
        if len(data) <= MOST_TEXT:
            return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    raise ModelError(f"{path} is no chat template: it has more than {MOST_TEXT:,} bytes")
