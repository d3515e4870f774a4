"""Make the tiny decoder graph of ONNX Runtime's self-test: run when its shape has to change.

    python -m tests.runtimes.machine.tiny_onnx
    python -m runtimes.machine.selftest_child onnx --record

It has the operators of real exports whose native kernels can go wrong: 4-bit and 8-bit MatMulNBits,
and GroupQueryAttention with its cache and rotary embedding. Its weights come from a hash function.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper, save_model

from runtimes.models.registry import backend

VOCABULARY, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 64, 64, 96, 4, 2, 16, 96
BLOCK = 32

_CONTRIB = "com.microsoft"


class _Builder:
    """Collects nodes and initializers; every node has one output named after it."""

    def __init__(self, exact: bool) -> None:
        self.accuracy = 1 if exact else 4
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def constant(self, name: str, value: npt.NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, name: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes)
        )
        return name

    def linear(self, name: str, source: str, rows: int, columns: int, bits: int) -> str:
        """A MatMulNBits of random quants, scaled so that its output stays near 1."""
        packed = BLOCK * bits // 8
        quants = _random(name, rows * columns * bits // 8).reshape(rows, columns // BLOCK, packed)
        spread = (2**bits) / 12**0.5
        scales = np.full(rows * columns // BLOCK, columns**-0.5 / spread, np.float32)
        return self.node(
            "MatMulNBits",
            name,
            source,
            self.constant(f"{name}.quants", quants),
            self.constant(f"{name}.scales", scales),
            domain=_CONTRIB,
            K=columns,
            N=rows,
            bits=bits,
            block_size=BLOCK,
            accuracy_level=self.accuracy,
        )


def _random(name: str, count: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(count), np.uint8)


def build(*, exact: bool = False) -> Any:
    """The graph as an onnx.ModelProto.

    An exact one computes in floats of 32 bits only, so that devices differ in the last bits alone.
    """
    graph = _Builder(exact)
    embedding = np.float32 if exact else np.float16
    table = (_random("embedding", VOCABULARY * HIDDEN).astype(embedding) / 128 - 1).reshape(
        VOCABULARY, HIDDEN
    )
    rows = graph.node("Gather", "rows", graph.constant("table", table), "input_ids")
    hidden = graph.node("Cast", "embedded", rows, to=TensorProto.FLOAT)
    attended = graph.node("Add", "after_attention", hidden, _attention(graph, hidden))
    normed = _norm(graph, "ffn_norm", attended)
    gate = graph.linear("gate", normed, FFN, HIDDEN, 4)
    active = graph.node("Mul", "active", gate, graph.node("Sigmoid", "sigmoid", gate))
    mixed = graph.node("Mul", "mixed", active, graph.linear("up", normed, FFN, HIDDEN, 8))
    down = graph.linear("down", mixed, HIDDEN, FFN, 4)
    last = _norm(graph, "final_norm", graph.node("Add", "after_ffn", attended, down))
    graph.linear("logits", last, VOCABULARY, HIDDEN, 8)
    return _model(graph)


def _attention(graph: _Builder, hidden: str) -> str:
    normed = _norm(graph, "attention_norm", hidden)
    query = graph.linear("query", normed, HEADS * HEAD_DIM, HIDDEN, 4)
    key = graph.linear("key", normed, KV_HEADS * HEAD_DIM, HIDDEN, 8)
    value = graph.linear("value", normed, KV_HEADS * HEAD_DIM, HIDDEN, 4)
    angles = np.outer(np.arange(CONTEXT), 10000.0 ** -np.arange(0, 1, 2 / HEAD_DIM))
    one = graph.constant("one", np.array([1], np.int64))
    total = graph.node("ReduceSum", "lengths", "attention_mask", one, keepdims=0)
    before = graph.node("Sub", "lengths_less_one", total, one)
    longest = graph.node(
        "Gather",
        "longest",
        graph.node("Shape", "mask_shape", "attention_mask"),
        graph.constant("axis", np.array(1, np.int64)),
    )
    graph.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [
                *(query, key, value, "past_key_values.0.key", "past_key_values.0.value"),
                graph.node("Cast", "lengths_int32", before, to=TensorProto.INT32),
                graph.node("Cast", "longest_int32", longest, to=TensorProto.INT32),
                graph.constant("cos", np.cos(angles).astype(np.float32)),
                graph.constant("sin", np.sin(angles).astype(np.float32)),
            ],
            ["attention", "present.0.key", "present.0.value"],
            name="attention",
            domain=_CONTRIB,
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )
    )
    return graph.linear("attention_output", "attention", HIDDEN, HEADS * HEAD_DIM, 8)


def _norm(graph: _Builder, name: str, source: str) -> str:
    ones = graph.constant(f"{name}.weight", np.ones(HIDDEN, np.float32))
    return graph.node("SimplifiedLayerNormalization", name, source, ones, epsilon=1e-5, axis=-1)


def _model(graph: _Builder) -> Any:
    def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def cache(name: str, length: str) -> list[Any]:
        shape: list[int | str] = ["batch", KV_HEADS, length, HEAD_DIM]
        return [value(f"{name}.0.key", shape), value(f"{name}.0.value", shape)]

    described = helper.make_graph(
        graph.nodes,
        "ingot_selftest",
        [
            value("input_ids", ["batch", "tokens"], TensorProto.INT64),
            value("attention_mask", ["batch", "total"], TensorProto.INT64),
            *cache("past_key_values", "past"),
        ],
        [value("logits", ["batch", "tokens", VOCABULARY]), *cache("present", "total")],
        graph.initializers,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(_CONTRIB, 1)]
    return helper.make_model(described, opset_imports=opsets, ir_version=10)


def genai_config() -> dict[str, Any]:
    """What the runner reads beside the graph."""
    decoder = {
        "filename": "model.onnx",
        "head_size": HEAD_DIM,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": "llama",
            "context_length": CONTEXT,
            "vocab_size": VOCABULARY,
            "eos_token_id": 0,
            "decoder": decoder,
        }
    }


def tokenizer() -> dict[str, Any]:
    """The least that ``tokenizers`` reads: one piece for each id."""
    pieces = {f"t{token}": token for token in range(VOCABULARY)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": pieces, "unk_token": "t0"},
    }


def write(folder: Path, *, exact: bool = False) -> Path:
    """The whole model; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(build(exact=exact), folder / "model.onnx")
    for name, content in (("genai_config", genai_config()), ("tokenizer", tokenizer())):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return folder


if __name__ == "__main__":
    write(backend("onnx").selftest.parent)
