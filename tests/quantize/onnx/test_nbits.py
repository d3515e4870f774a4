"""A graph whose matrices are stored each in its own way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from quantize.onnx.graphfile import EMBEDDING, HEAD
from quantize.onnx.nbits import plan_matrices, plan_variants, quantize_graph, tensor_of
from quantize.onnx.rounding import dequantize, round_matrix
from quantize.recipes import Mix, parse_variant
from runtimes.errors import ModelError
from tests.quantize.onnx.graphs import computed, graph_of

Floats = npt.NDArray[np.float32]

HIDDEN, WIDE, ROWS = 192, 320, 90
UP, DOWN = "/model/layers.0/mlp/up_proj/MatMul", "/model/layers.0/mlp/down_proj/MatMul"


def _weights() -> dict[str, Floats]:
    """Matrices [outputs, inputs] by the names of their nodes."""
    rng = np.random.default_rng(3)
    shapes = {EMBEDDING: (ROWS, HIDDEN), UP: (WIDE, HIDDEN), DOWN: (HIDDEN, WIDE)}
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, HEAD: made[EMBEDDING]}


def _model(weights: dict[str, Floats]) -> ir.Model:
    """Lookup, two products, and the output layer, whose matrix is the table's."""
    constants = {name: w.T for name, w in weights.items() if name != EMBEDDING}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], name=EMBEDDING),
        helper.make_node("MatMul", ["x", UP], ["up"], name=UP),
        helper.make_node("MatMul", ["up", DOWN], ["down"], name=DOWN),
        helper.make_node("MatMul", ["down", HEAD], ["logits"], name=HEAD),
    ]
    given = ("ids", TensorProto.INT64, ["rows"])
    wanted = ("logits", TensorProto.FLOAT, ["rows", ROWS])
    constants["table"] = weights[EMBEDDING]
    return ir.from_proto(graph_of(nodes, given, wanted, constants))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["8s64", "8z32", "4s32", "4z64"])
def test_every_node_has_its_own(head: str, tied: bool):
    names = {UP: "4z32", DOWN: "8z128", HEAD: head, EMBEDDING: "8s32"}
    plan = {name: parse_variant(variant) for name, variant in names.items()}
    weights = _weights()
    model = _model(weights)
    notes = quantize_graph(model.graph, plan, {}, tied=tied)
    assert ("shares" in notes[0]) is tied
    kept = {
        name: dequantize(round_matrix(w, plan[name].fitting(w.shape[1])))
        for name, w in weights.items()
    }
    table = kept[HEAD] if tied else kept[EMBEDDING]
    ids = np.arange(0, ROWS, 4)
    expected = table[ids] @ kept[UP].T @ kept[DOWN].T @ kept[HEAD].T
    # Activations are rounded to 8 bits in each product.
    off = computed(ir.to_proto(model), ids=ids) - expected
    assert np.sqrt(np.square(off).mean() / np.square(expected).mean()) < 0.02
    products = [node for node in model.graph if node.op_type == "MatMulNBits"]
    stored = {
        n.name: (n.attributes["bits"].value, n.attributes["block_size"].value) for n in products
    }
    assert stored[f"{UP}_Q4"] == (4, 32)
    assert stored[f"{DOWN}_Q8"] == (8, 64)  # 320 is no multiple of 128
    floats = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.FLOAT]
    assert floats == []


def test_a_mix_says_how_each_tensor_is_stored_and_weighed(tmp_path: Path):
    weights = _weights()
    tensors = {UP: "blk.0.ffn_up.weight", DOWN: "blk.0.ffn_down.weight"}
    tensors |= {HEAD: "output.weight", EMBEDDING: "token_embd.weight"}
    rng = np.random.default_rng(1)
    importance = {
        tensors[node]: np.exp(3 * rng.standard_normal(w.shape[1])).astype(np.float32)
        for node, w in weights.items()
    }
    np.savez(tmp_path / "importance.npz", **importance)
    variants = dict(zip(tensors.values(), ("4z32", "8s64", "4s32", "4z64"), strict=True))
    model = _model(weights)
    plan, weighed = plan_matrices(
        model.graph, {}, Mix(variants, tmp_path / "importance.npz", metadata={})
    )
    assert {tensors[node]: variant.name for node, variant in plan.items()} == variants
    quantize_graph(model.graph, plan, weighed, tied=False)
    stored = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    for node, tensor in tensors.items():
        rounded = round_matrix(weights[node], plan[node], importance[tensor])
        codes = stored[f"{node.strip('/').replace('/', '.')}.codes"]
        np.testing.assert_array_equal(codes, rounded.codes)
    mix = Mix({tensors[UP]: "4z32"}, tmp_path / "importance.npz", metadata={})
    with pytest.raises(ModelError, match=r"down_proj.* is none of the model's tensors"):
        plan_matrices(_model(weights).graph, {}, mix)


@pytest.mark.parametrize(
    ("node", "known", "tensor"),
    [
        (HEAD, ["output.weight"], "output.weight"),
        (HEAD, [], "token_embd.weight"),
        ("/model/layers.3/attn/o_proj/MatMul", ["blk.3.attn_output.weight"], ""),
        ("/model/layers.3/attn/q_proj/MatMul", ["blk.3.attn_q.weight"], ""),
        ("/model/layers.3/attn/q_proj/MatMul", ["blk.3.attn_qkv.weight"], ""),
        ("/model/layers.11/mlp/gate_proj/MatMul", ["blk.11.ffn_up.weight"], ""),
        ("/transformer/h.0/attn/c_attn/MatMul", ["blk.0.attn_qkv.weight"], ""),
        ("/model/layers.3/other/MatMul", ["blk.3.attn_q.weight"], "blk.3.other.weight"),
    ],
)
def test_a_nodes_tensor_may_be_a_part_of_one(node: str, known: list[str], tensor: str):
    assert tensor_of(node, known) == (tensor or known[0])


def test_what_is_not_in_the_plan_stays():
    weights = _weights()
    model = _model(weights)
    assert quantize_graph(model.graph, {UP: parse_variant("4s32")}, {}, tied=True) == []
    kinds = [node.op_type for node in model.graph if node.op_type != "Cast"]
    assert kinds == ["Gather", "MatMulNBits", "MatMul", "MatMul"]


def test_scales_of_a_graph_in_half_precision_are_read_as_they_are():
    """What a graph for CUDA has; it cannot run here."""
    weights = {name: w.astype(np.float16) for name, w in _weights().items()}
    model = _model(weights)  # type: ignore[arg-type]
    options = {"usual": "4z32", "careful": "8s64"}
    quantize_graph(model.graph, plan_variants(model.graph, options), {}, tied=True)
    kinds = [node.op_type for node in model.graph]
    assert "Cast" not in kinds
    assert kinds.count("MatMulNBits") == 3


def test_the_careful_ones_are_those_that_lose_most():
    weights = _weights()
    plan = plan_variants(_model(weights).graph, {"usual": "4z32", "careful": "8s64"})
    assert {name: variant.name for name, variant in plan.items()} == {
        EMBEDDING: "8s64",
        HEAD: "8s64",
        UP: "4z32",
        DOWN: "8s64",
    }
