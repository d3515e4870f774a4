"""Reasons to refuse a model before any work starts: code of its own, weights that are quantized
already, a configuration of another model."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantize.errors import SourceError, UsageError
from quantize.source.files import Tensor, read_json

_FLAG = "--trust-remote-code"
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_EMBEDDING = re.compile(
    r"(?:.*\.)?(?:embed_tokens|wte|embed_in|word_embeddings|tok_embeddings)\.weight"
)
_LAYER = re.compile(r"(?:.*\.)?(?:layers|h|blocks)\.([0-9]{1,6})\.")
_NARROW = ("embedding_size", "word_embed_proj_dim")
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_DEPTH = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def require_no_code(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Raise UsageError when using ``folder`` would need, or could run, code that it brings.

    Returns a note when config.json names such code but transformers has the model built in and the
    code itself is not there. Files with code are refused even then: the GGUF converter loads some
    tokenizers with trust in whatever lies in the folder.
    """
    tokenizer = folder / "tokenizer_config.json"
    tokens = read_json(tokenizer, "the tokenizer cannot be read") if tokenizer.is_file() else {}
    if not config.get("auto_map") and not tokens.get("auto_map"):
        return None
    code = sorted(path.name for path in folder.glob("*.py"))
    where = "tokenizer_config.json" if tokens.get("auto_map") else "config.json"
    if built_in(config) and not tokens.get("auto_map"):
        if not code:
            return "config.json names code of the model's own; the built-in model is used instead"
        raise UsageError(
            f"{folder} brings Python code ({', '.join(code[:3])}) that converters could run, and"
            f" does not need it: remove it, or give {_FLAG} if you trust it"
        )
    raise UsageError(
        f"{folder} needs Python code that the model brings along (auto_map in {where}). Read it"
        f" first; if you trust it, give {_FLAG}"
    )


def built_in(config: Mapping[str, Any]) -> bool:
    """Whether the installed transformers has the model. Nothing is imported: that takes seconds,
    and torch."""
    kind, classes = config.get("model_type"), config.get("architectures")
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None or not isinstance(classes, list) or not classes:
        return False
    known = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    entry = rf'\(\s*"{re.escape(str(kind))}",\s*"{re.escape(str(classes[0]))}",?\s*\)'
    return re.search(entry, known.read_text(encoding="utf-8")) is not None


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
        for what, names, has, where in (
            # Some models have a narrower embedding and a projection behind it.
            ("hidden size", (*_NARROW, *_WIDTH), width, "the embedding's columns"),
            ("vocabulary", ("vocab_size",), rows, "the embedding's rows"),
        ):
            says = _first(settings, names)
            if says is not None and says != has:
                raise SourceError(
                    f"{folder}: config.json says {what} {says:,}, {where} are {has:,}; one of the"
                    " two belongs to another model"
                )
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    depth = _first(settings, _DEPTH)
    # More are there in models with extra layers for multi-token prediction, or with an encoder.
    if depth is not None and layers and len(layers) < depth:
        missing = next(layer for layer in range(depth) if layer not in layers)
        raise SourceError(
            f"{folder}: config.json says {depth} layers, the weights have {len(layers)}; layer"
            f" {missing} is not there. One of the two belongs to another model"
        )


def _first(settings: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (settings.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)
