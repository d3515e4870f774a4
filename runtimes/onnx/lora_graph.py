"""A graph with room for LoRA adapters beside its matrix products.

Beside a product y = x W of a weight come y + ((x A) * mask) B: A [ranks, inputs] and B [ranks,
outputs] have those of several adapters one below the other, and the mask [rows, 1, ranks] is 1
where a rank belongs to the row's adapter. So rows of all adapters go in one pass, and each matrix
is read once. That is less work than to gather a copy of A and B for every row. On a processor ONNX
Runtime makes one operator of the product by A and its transpose.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.graph_file import Node, OnnxGraph, mapped
from runtimes.onnx.small_graph import FLOATS, integer, node, value_info
from runtimes.onnx.wire import ParseWork, encode, fields, items, last_text, text

MASK = "lora.mask"
# The builder's names for weights, by those of GGUF files
_PRODUCT = re.compile(r"/model/layers\.(\d+)/(?:attn|mlp)/(\w+)/MatMul(?:_Q\d+)?")
_ROLES = {
    "qkv_proj": "attn_qkv",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
_HEAD = re.compile(r"/lm_head/MatMul(?:_Q\d+)?")


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: the node's output, what it multiplies, and the weights that lie in it side
    by side, each with its number of outputs."""

    output: str
    activation: str
    inputs: int
    parts: Mapping[str, int]
    nbytes: int = 4  # of a number that goes in or comes out


def matrix_names(part: str) -> tuple[str, str]:
    """The graph's inputs A and B for a weight."""
    return f"lora.{part}.a", f"lora.{part}.b"


def products(graph: OnnxGraph, model: ModelFile) -> list[Product]:
    """The products that adapters may change."""
    found = []
    for one in graph.nodes:
        layer = _PRODUCT.fullmatch(one.name)
        role = _ROLES.get(layer[2]) if layer else None
        role = f"blk.{layer[1]}.{role}" if layer and role else None
        if _HEAD.fullmatch(one.name):
            role = "output"
        shape = _shape(graph, one)
        if role is None or shape is None or not one.outputs:
            continue
        inputs, outputs = shape
        parts = {role: outputs}
        if role.endswith(".attn_qkv"):
            queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
            widths = dict(zip("qkv", (queries, keys, keys), strict=True))
            parts = {role.replace("attn_qkv", f"attn_{one}"): n for one, n in widths.items()}
        if sum(parts.values()) == outputs:
            activation, output = one.inputs[0], one.outputs[0]
            found.append(Product(output, activation, inputs, parts, graph.cache_bytes))
    return found


def _shape(graph: OnnxGraph, one: Node) -> tuple[int, int] | None:
    """Inputs and outputs of a product by a constant."""
    if len(one.inputs) < 2:
        return None
    if one.kind == "MatMulNBits" and {"K", "N"} <= one.numbers.keys():
        return one.numbers["K"], one.numbers["N"]
    weight = graph.initializers.get(one.inputs[1]) if one.kind == "MatMul" else None
    return (weight.shape[0], weight.shape[1]) if weight and len(weight.shape) == 2 else None


def adapted_graph(path: Path, wanted: Sequence[Product]) -> bytes:
    """The graph file with what adapters need beside these products; its weights stay where they
    are. Raises ModelError for a file that cannot be read."""
    work = ParseWork()
    try:
        found = bytearray()
        for number, value, raw in items(mapped(path), work):
            found += encode(7, _graph(value, wanted, work)) if number == 7 else raw
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"{path} is not an ONNX graph: {error or 'it ends too early'}") from error
    return bytes(found)


def _graph(graph: memoryview, wanted: Sequence[Product], work: ParseWork) -> bytes:
    by_output = {product.output: product for product in wanted}
    found = bytearray()
    for number, value, raw in items(graph, work):
        product = None
        if number == 1:
            outputs = fields(value, work)[2]
            product = by_output.get(last_text(outputs[:1], work))
        found += encode(1, _renamed(value, work)) if product else raw
        for added in _beside(product) if product else ():
            found += encode(1, added)
    element = FLOATS[wanted[0].nbytes]
    found += encode(11, value_info(MASK, element, "lora.rows", 1, "lora.ranks"))
    for product in wanted:
        for part, width in product.parts.items():
            for name, columns in zip(matrix_names(part), (product.inputs, width), strict=True):
                found += encode(11, value_info(name, element, "lora.ranks", columns))
    return bytes(found)


def _renamed(node: memoryview, work: ParseWork) -> bytes:
    """The product's node; what it was the name of is now the sum."""
    return b"".join(
        encode(2, _base(text(value, work))) if number == 2 else bytes(raw)
        for number, value, raw in items(node, work)
    )


def _base(output: str) -> str:
    return f"{output}/without_lora"


def _beside(product: Product) -> list[bytes]:
    nodes, deltas = [], []
    for part in product.parts:
        a, b = matrix_names(part)
        steps = ("turned", "down", "own", "delta")
        turned, down, own, delta = (f"lora.{part}.{step}" for step in steps)
        nodes.append(node("Transpose", (a,), turned))
        nodes.append(node("MatMul", (product.activation, turned), down))
        nodes.append(node("Mul", (down, MASK), own))
        nodes.append(node("MatMul", (own, b), delta))
        deltas.append(delta)
    delta = deltas[0]
    if len(deltas) > 1:
        delta = f"lora.{product.output}.delta"
        last = integer("axis", 2)
        nodes.append(node("Concat", tuple(deltas), delta, last))
    return [*nodes, node("Add", (_base(product.output), delta), product.output)]
