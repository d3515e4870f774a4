"""Runs in a child process: from optimum's float export to a folder like the builder's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantize.errors import CheckError, SourceError
from quantize.onnx.graphfile import NAME, load_graph, save_graph
from runtimes.models.modelfile import GENAI_CONFIG

# Float against float: kernels differ in the last digits only. Measured on the random models of the
# tests: below 1e-8.
_MOST_DIVERGENCE = 1e-4


def _check(model: Path, export: Path, *, trust_remote_code: bool) -> None:
    """Raise CheckError when the export computes something else than the original."""
    from quantize.onnx.agreement import divergence

    found = divergence(model, export, trust_remote_code=trust_remote_code)
    if not found <= _MOST_DIVERGENCE:  # nan fails too
        raise CheckError(
            f"optimum's export does not compute what the original model computes (mean KL"
            f" divergence {found:.2g} nats, at most {_MOST_DIVERGENCE} is rounding); use --to gguf"
        )


def finish(
    model: str,
    export: str,
    out: str,
    precision: str,
    options: dict[str, str],
    trust_remote_code: bool,
    check: bool,
) -> list[str]:
    """Write the folder ``out`` from the float ``export``; returns what the user should know.

    With ``check`` the export is compared with the original first. ``precision`` and ``options`` are
    those that onnxruntime-genai's builder takes; "fp32" leaves the weights as they are.
    """
    from quantize.onnx.embedding import shrink_embedding
    from quantize.onnx.logits import select_rows
    from quantize.onnx.nbits import quantize_nbits
    from quantize.onnx.normalize import normalize, sensitive

    if check:
        _check(Path(model), Path(export), trust_remote_code=trust_remote_code)
    graph = load_graph(Path(export) / NAME)
    tied = normalize(graph)
    described = _describe(graph.graph, Path(model), trust_remote_code=trust_remote_code)
    notes: list[str] = []
    if precision != "fp32":
        algorithm = options.get("algo_config", "")
        method, mixed = algorithm.removesuffix("_mixed"), algorithm.endswith("_mixed")
        layers = described["model"]["decoder"]["num_hidden_layers"]
        graph = quantize_nbits(
            graph, precision, method, sensitive(graph.graph, layers) if mixed else []
        )
        notes = shrink_embedding(graph.graph, tied=tied)
    select_rows(graph.graph)
    folder = Path(out)
    folder.mkdir()
    save_graph(graph, folder / NAME)
    config = json.dumps(described, indent=4)
    (folder / GENAI_CONFIG).write_text(config + "\n", encoding="utf-8")
    _write_tokenizer(Path(model), folder, trust_remote_code=trust_remote_code)
    return notes


def _describe(graph: Any, model: Path, *, trust_remote_code: bool) -> dict[str, Any]:
    """The genai_config.json of a graph whose keys and values are given back, not written in place.

    Format: https://onnxruntime.ai/docs/genai/reference/config.html
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    past = [value for value in graph.inputs if value.name.startswith("past_key_values.")]
    logits = next(value for value in graph.outputs if value.name == "logits")
    inputs = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    if any(value.name == "position_ids" for value in graph.inputs):
        inputs["position_ids"] = "position_ids"
    decoder = {
        "filename": NAME,
        "head_size": int(past[0].shape[3]),
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": len(past) // 2,
        "num_key_value_heads": int(past[0].shape[1]),
        "inputs": {
            **inputs,
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    context = config.max_position_embeddings
    return {
        "model": {
            **_special_ids(model, config),
            "context_length": context,
            "decoder": decoder,
            "type": config.model_type,
            "vocab_size": int(logits.shape[2]),
        },
        "search": {"max_length": context, "past_present_share_buffer": False},
    }


def _special_ids(model: Path, config: Any) -> dict[str, Any]:
    """Ids that begin, end and fill a text, those of generation_config.json first."""
    from transformers import GenerationConfig

    path = model / "generation_config.json"
    generation = GenerationConfig.from_pretrained(model) if path.is_file() else None
    found: dict[str, Any] = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(generation, name, None)
        value = getattr(config, name, None) if value is None else value
        if value is not None:
            found[name] = value
    if "eos_token_id" not in found:
        raise SourceError(f"{model / 'config.json'} names no token that ends a text (eos_token_id)")
    end = found["eos_token_id"]
    found.setdefault("pad_token_id", end[0] if isinstance(end, list) else end)
    return found


def _write_tokenizer(model: Path, folder: Path, *, trust_remote_code: bool) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    tokenizer.save_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        raise SourceError(
            f"{model} has a tokenizer that cannot be written as tokenizer.json; use --to gguf"
        )
