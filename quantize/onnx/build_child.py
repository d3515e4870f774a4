"""Runs in a child process: onnxruntime-genai's model builder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def build(model: str, out: str, cache: str, precision: str, options: dict[str, str]) -> list[str]:
    """Build the Hugging Face folder ``model`` into the folder ``out``.

    ``options`` are the builder's ``--extra_options``. Returns what the user should know.
    """
    builder = _load_builder()
    pairs = [f"{key}={value}" for key, value in options.items()]
    extra = builder.parse_extra_options("", model, out, precision, "cpu", cache, pairs)
    tied = bool(extra["shared_embeddings"])
    _flatten_rope(extra["hf_details"]["hf_config"])
    builder.create_model("", model, out, precision, "cpu", cache, **extra)
    if precision == "fp32":
        return []
    from quantize.onnx.embedding import shrink_embedding

    return shrink_embedding(Path(out), tied=tied)


def _load_builder() -> Any:
    """The builder's module, imported as its own command line does it."""
    spec = importlib.util.find_spec("onnxruntime_genai")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("onnxruntime-genai is not installed")
    sys.path.append(str(Path(spec.origin).parent / "models"))
    import builder  # type: ignore[import-not-found]
    from builders.base import Model  # type: ignore[import-not-found]

    # The builder stamps the graph with the commit of whichever git checkout its environment lies
    # in: ours. The same model would give another checksum after every commit.
    Model.get_genai_commit = classmethod(lambda _cls: None)
    _recognise_lm_head_by_identity(Model)
    return builder


def _recognise_lm_head_by_identity(model: Any) -> None:
    """The builder takes every linear layer with as many outputs as there are tokens for the output
    layer; a feed-forward layer of that size would be wired to the logits."""
    import torch

    original = model.has_lm_head

    def has_lm_head(self: Any, module: Any) -> bool:
        head = getattr(self.weights, "lm_head", None)
        return module is head if isinstance(head, torch.nn.Linear) else original(self, module)

    model.has_lm_head = has_lm_head


def _flatten_rope(config: Any) -> None:
    """Give Gemma 3's configuration the form that the builder reads.

    transformers 5 keeps one set of rotary parameters for each kind of layer in ``rope_parameters``;
    the builder wants the global layers' set there and the local ones' base beside it, as
    transformers 4 had it.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    full, local = rope.get("full_attention"), rope.get("sliding_attention")
    if config.model_type in ("gemma3", "gemma3_text") and full and local:
        config.rope_local_base_freq = local["rope_theta"]
        config.rope_theta = full["rope_theta"]
        config.rope_parameters = dict(full)
