"""Optimum's float export made into a folder like the builder's, in a child process."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from quantize.arrays import Array, Floats, Ints
from quantize.errors import CheckError, SourceError
from quantize.quality.fidelity import compare, shifted
from quantize.recipes import Mix, Recipe
from quantize.source import SourceModel
from runtimes.errors import ModelError
from runtimes.models.modelfile import GENAI_CONFIG


def normalize(model: Any) -> bool:
    """Change ``model`` (onnx_ir) in place; whether its table and its output layer are one matrix.

    Raises ModelError when there is no output layer or no embedding table.
    """
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    from quantize.onnx.graphfile import EMBEDDING, HEAD, add_constant

    graph = model.graph
    head = _output_layer(graph)
    rows = int(_logits(graph).shape[2])
    for node in list(graph):
        if node.op_type == "Gemm":
            _split_gemm(graph, node)
        elif node.op_type == "MatMul" and node.inputs[1].const_value is None:
            weight = _constant(node.inputs[1])
            if weight is not None and weight.ndim == 2:
                name = f"{node.name}.weight"
                node.replace_input_with(1, add_constant(graph, name, weight.copy()))
    head.name = HEAD
    lookups = (node for node in graph if node.op_type == "Gather")
    table = next((node for node in lookups if _rows(node.inputs[0]) == rows), None)
    if table is None:
        raise ModelError("the exported graph has no embedding table")
    table.name = EMBEDDING
    weight, entries = _constant(head.inputs[1]), _constant(table.inputs[0])
    assert weight is not None
    assert entries is not None
    RemoveUnusedNodesPass()(model)  # what made the weights that are constants now
    return bool(weight.T.shape == entries.shape and np.array_equal(weight.T, entries))


def _logits(graph: Any) -> Any:
    """Raises ModelError for a graph without."""
    found = next((value for value in graph.outputs if value.name == "logits"), None)
    if found is None:
        raise ModelError("the exported graph has no output 'logits'")
    return found


def _output_layer(graph: Any) -> Any:
    node = _logits(graph).producer()
    while node is not None and node.op_type != "MatMul":
        # A bias, a scale or a cast between the output layer and the logits.
        node = next((v.producer() for v in node.inputs if v is not None and v.producer()), None)
    if node is None or _constant(node.inputs[1]) is None:
        raise ModelError("the exported graph has no output layer that ends in its logits")
    return node


def _split_gemm(graph: Any, node: Any) -> None:
    """A Gemm by a constant becomes a MatMul and an addition."""
    from quantize.onnx.graphfile import Inserter, add_constant

    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    weight = _constant(node.inputs[1])
    if weight is None or settings.get("transA", 0) or settings.get("alpha", 1.0) != 1.0:
        return
    if settings.get("transB", 0):
        weight = weight.T
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and settings.get("beta", 1.0) != 1.0:
        return
    name = node.name.removesuffix("/Gemm")
    weights = add_constant(graph, f"{name}.weight_2d", np.ascontiguousarray(weight))
    new = Inserter(graph, node, f"{name}/")
    product = new.add("MatMul", "MatMul", node.inputs[0], weights)
    product.name = f"{name}/MatMul_output_0"
    new.replace_by(product if bias is None else new.add("Add", "Add", product, bias))


def _constant(value: Any) -> Array | None:
    """The value's content where it is known: a constant, also behind a Transpose or Identity."""
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy())
    node = value.producer()
    if node is None or node.op_type not in ("Transpose", "Identity"):
        return None
    inner = _constant(node.inputs[0])
    if inner is None or node.op_type == "Identity":
        return inner
    order = node.attributes["perm"].value if "perm" in node.attributes else None
    return np.transpose(inner, order)


def _rows(value: Any) -> int:
    """Rows of a constant matrix; 0 for anything else."""
    tensor = value.const_value
    return int(tensor.shape[0]) if tensor is not None and len(tensor.shape) == 2 else 0


_TOKENS = 48
_FIRST = 32  # in one step, without a past; the others one by one, so that the past is tried too

# Mean KL divergence in nats. Float against float: kernels differ in the last digits only. Measured
# on the random models of the tests: below 1e-8.
_MOST_DIVERGENCE = 1e-4


def finish(
    source: SourceModel,
    export: Path,
    out: Path,
    recipe: Recipe,
    mix: Mix | None,
    *,
    check: bool,
) -> list[str]:
    """Write the folder ``out`` from the float ``export``; returns what the user should know.

    With ``check`` the export is compared with the original first.
    """
    import onnx_ir as ir

    from quantize.onnx.graphfile import NAME, save_graph, select_rows
    from quantize.onnx.nbits import plan_matrices, quantize_graph

    graph = ir.load(export / NAME)
    described = _describe(graph.graph, source)
    decoder = described["model"]["decoder"]
    if check:
        _require_agreement(source, export / NAME, decoder)
    tied = normalize(graph)
    notes: list[str] = []
    if recipe.options or mix:
        plan, inputs = plan_matrices(graph.graph, recipe.options, mix)
        notes = quantize_graph(graph.graph, plan, inputs, tied=tied)
    select_rows(graph.graph)
    graph.metadata_props.update(mix.metadata if mix else {})
    out.mkdir()
    save_graph(graph, out / NAME)
    config = json.dumps(described, indent=4)
    (out / GENAI_CONFIG).write_text(config + "\n", encoding="utf-8")
    _write_tokenizer(source, out)
    return notes


def _require_agreement(source: SourceModel, graph: Path, decoder: dict[str, Any]) -> None:
    """An export through another version of transformers can be wrong without a word: a setting that
    it does not know, a weight that it does not find."""
    import torch
    from transformers import AutoModelForCausalLM

    model = source.load(AutoModelForCausalLM, dtype=torch.float32).eval()
    most = min(_TOKENS, getattr(model.config, "max_position_embeddings", _TOKENS))
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, most))
    with torch.inference_mode():
        wanted = model(torch.from_numpy(ids)).logits[0].numpy()
    del model
    tops = wanted.argmax(axis=1)
    scores = compare(shifted(wanted), tops, _exported(graph, decoder, ids), tops)
    found = float(scores.kl.mean())
    if not found <= _MOST_DIVERGENCE:  # nan fails too
        raise CheckError(
            f"optimum's export does not compute what the original model computes (mean KL"
            f" divergence {found:.2g} nats, at most {_MOST_DIVERGENCE} is rounding); use --to gguf"
        )


def _exported(graph: Path, decoder: dict[str, Any], ids: Ints) -> Floats:
    from quantize.onnx.graphfile import open_session, step_feeds

    session = open_session(str(graph))
    names = [node.name.replace("present", "past_key_values") for node in session.get_outputs()]
    rows, past = [], dict[str, Any]()
    steps = [(0, min(_FIRST, ids.shape[1])), *((i, i + 1) for i in range(_FIRST, ids.shape[1]))]
    for begin, end in steps:
        outputs = session.run(None, step_feeds(session, decoder, ids[:, begin:end], begin, past))
        past = dict(zip(names, outputs, strict=True))
        rows.append(past.pop("logits")[0])
    return np.concatenate(rows)


def _describe(graph: Any, source: SourceModel) -> dict[str, Any]:
    """The genai_config.json of a graph whose keys and values are given back, not written in place.

    Format: https://onnxruntime.ai/docs/genai/reference/config.html
    """
    from transformers import AutoConfig

    from quantize.onnx.graphfile import NAME

    config = source.load(AutoConfig)
    past = [value for value in graph.inputs if value.name.startswith("past_key_values.")]
    logits = _logits(graph)
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
            **_special_ids(source.folder, config),
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


def _write_tokenizer(source: SourceModel, folder: Path) -> None:
    source.tokenizer().save_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        raise SourceError(
            f"{source.folder} has a tokenizer that cannot be written as tokenizer.json;"
            " use --to gguf"
        )
