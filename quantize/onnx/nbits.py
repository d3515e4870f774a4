"""Matrix products and the embedding table of a float graph in 4 or 8 bits, each as it is told.

Only child processes call what is here.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from quantize.arrays import Array, Floats
from quantize.children import counted
from quantize.onnx.graphfile import EMBEDDING, HEAD, Inserter, add_constant
from quantize.onnx.rounding import round_matrix
from quantize.onnx.w8a8 import Rewrite, product_weight
from quantize.recipes import W8A8, Mix, Variant, parse_variant, variants_of
from quantize.source.shapes import gguf_name
from runtimes.errors import ModelError

DOMAIN = "com.microsoft"
_INT8 = 4  # the operator's accuracy_level: activations in 8 bits, the fastest on processors
_LEAST_BLOCK = 32
_FEW_BITS = 4  # in which errors are worth making up for
# Products that lose most when rounded, by the names of onnxruntime-genai's builder and of
# transformers: those that make the values (alone, or with queries and keys) and those that leave
# the feed-forward block.
_SENSITIVE = re.compile(
    r"/(v_proj|value|query_key_value|qkv_proj|c_attn|Wqkv|down_proj|dense_4h_to_h|fc2|fc_out"
    r"|mlp/c_proj|w2)/"
)


def plan_variants(graph: Any, options: Mapping[str, str]) -> dict[str, Variant]:
    """How each product by a constant, and the embedding table, of ``graph`` (onnx_ir) is stored, by
    the names of their nodes.

    A recipe's ``options`` name two variants, ``usual`` and ``careful``. The latter is for the
    table, the output layer, and the products that make the values and leave the feed-forward block.
    """
    usual, careful = variants_of(options)
    plan = {EMBEDDING: careful}
    for node in graph:
        if product_weight(node) is not None:
            picked = node.name == HEAD or _SENSITIVE.search(node.name)
            plan[node.name] = careful if picked else usual
    return plan


@dataclass(frozen=True, slots=True)
class Inputs:
    """A product's inputs: how much each matters, and a file of their moments, as `round_matrix` has
    them; None where they are not known."""

    importance: Floats | None = None
    moments: Path | None = None


def plan_matrices(
    graph: Any, options: Mapping[str, str], mix: Mix | None
) -> tuple[dict[str, Variant], dict[str, Inputs]]:
    """As `plan_variants` by a recipe's ``options``, or by a ``mix``, which also tells of the nodes'
    inputs. Raises ModelError for a product of which it says nothing."""
    if mix is None:
        return plan_variants(graph, options), {}
    nodes = [*(node.name for node in graph if product_weight(node) is not None), EMBEDDING]
    arrays: dict[str, Floats] = {}
    if mix.importance:
        with np.load(mix.importance) as found:
            arrays = dict(found)
    moments = {path.stem: path for path in mix.moments.glob("*.npy")} if mix.moments else {}
    inputs = {}
    for node in nodes:
        weighed, summed = (tensor_of(node, known) for known in (arrays, moments))
        inputs[node] = Inputs(arrays.get(weighed), moments.get(summed))
    if not mix.variants:
        return plan_variants(graph, options), inputs
    plan = {}
    for node in nodes:
        tensor = tensor_of(node, mix.variants)
        if tensor in mix.variants:
            plan[node] = parse_variant(mix.variants[tensor])
        elif node != EMBEDDING:  # a table whose rows no block divides stays as it is
            raise ModelError(
                f"the graph's product {node} is none of the model's tensors that sensitivities"
                " were measured of: build a recipe by name instead of a target"
            )
    return plan, inputs


def tensor_of(node: str, known: Container[str]) -> str:
    """The tensor that the node of that name has, of those ``known`` where it is a part of one.

    Where embeddings are tied, the output layer has the table's.
    """
    if node in (EMBEDDING, HEAD):
        own = node == HEAD and "output.weight" in known
        return "output.weight" if own else "token_embd.weight"
    tensor = f"{gguf_name(node.strip('/').replace('/', '.')).rpartition('.')[0]}.weight"
    if tensor in known:
        return tensor
    whole = re.sub(r"\.attn_[qkv]\.", ".attn_qkv.", tensor).replace(".ffn_gate.", ".ffn_up.")
    return whole if whole in known else tensor


def quantize_graph(
    graph: Any,
    plan: Mapping[str, Variant],
    known: Mapping[str, Inputs],
    *,
    tied: bool,
) -> list[str]:
    """Store the matrices of ``graph`` (onnx_ir) as ``plan`` has it for their nodes, in place, and
    return what the user should know. Nodes that it does not name stay as they are.

    ``known`` tells of the nodes' inputs. With ``tied`` embeddings the output layer's matrix serves
    as the table too. Blocks of the plan that do not
    divide a matrix's rows become smaller ones.
    """
    products = [node for node in graph if node.name in plan and product_weight(node) is not None]
    integers = Rewrite(graph, partial(add_constant, graph))
    stored: dict[str, Stored] = {}  # by the names of the float constants: two may share one
    head = None
    for node in counted(products, "matrices"):
        weight = node.inputs[1]
        if plan[node.name].name == W8A8:
            integers.product(node)
            continue
        if weight.name not in stored:
            matrix = weight.const_value.numpy().T
            stored[weight.name] = _store(graph, node, matrix, plan, known)
        if node.name == HEAD:
            head = stored[weight.name]
        replace_product(graph, node, stored[weight.name])
        if not weight.uses():
            graph.initializers.pop(str(weight.name))
    notes = _replace_table(graph, plan, known, head if tied else None)
    if made := sum(one.compensated for one in stored.values()):
        notes.append(f"{made} matrices were rounded so that errors are made up for (--gptq)")
    graph.sort()  # a shared table is read before the output layer, where its matrix is
    return notes


@dataclass(frozen=True, slots=True)
class Stored:
    """A rounded matrix [outputs, inputs], and its values in the graph."""

    variant: Variant
    outputs: int
    inputs: int
    codes: Any
    scales: Any  # as the operators read them: of the activations' type
    zeros: list[Any]  # none: both operators take the middle of the codes
    compensated: bool = False  # its errors are made up for

    @property
    def blocks(self) -> dict[str, int]:
        """Settings of both operators."""
        return {"bits": self.variant.bits, "block_size": self.variant.block}


def _store(
    graph: Any,
    node: Any,
    matrix: Array,
    plan: Mapping[str, Variant],
    known: Mapping[str, Inputs],
) -> Stored:
    """The ``matrix`` [outputs, inputs] of ``node``, rounded as planned.

    The operators read scales of their activations' type only. On a processor that is 32 bits:
    those are stored in 16 and widened by a Cast, once, when a session folds its constants.
    """
    outputs, inputs = matrix.shape
    variant = plan[node.name].fitting(inputs)
    own = known.get(node.name, Inputs())
    importance, moments = own.importance, None
    if importance is not None and importance.size != inputs:
        importance = None
    if own.moments and variant.bits == _FEW_BITS and inputs % variant.block == 0:
        found = np.load(own.moments)
        moments = found if found.shape == (inputs, inputs) else None
    rounded = round_matrix(matrix, variant, importance, moments)
    name = node.name.strip("/").replace("/", ".")
    codes = add_constant(graph, f"{name}.codes", rounded.codes)
    scales = add_constant(graph, f"{name}.scales", rounded.scales)
    zeros = []
    if rounded.zeros is not None:
        zeros.append(add_constant(graph, f"{name}.zeros", rounded.zeros))
    wanted = ir.DataType.from_numpy(matrix.dtype)
    if scales.dtype != wanted:
        scales = Inserter(graph, node, "/scales").add("Cast", node.name, scales, to=wanted)
    return Stored(variant, outputs, inputs, codes, scales, zeros, moments is not None)


def replace_product(graph: Any, node: Any, stored: Stored) -> None:
    """Multiply by the ``stored`` matrix in the place of the product ``node``."""
    variant = stored.variant
    new = Inserter(graph, node, f"{node.name}_")
    inputs = node.inputs[0], stored.codes, stored.scales, *stored.zeros
    sizes = {"accuracy_level": _INT8, "K": stored.inputs, "N": stored.outputs}
    name = f"Q{variant.bits}"
    new.replace_by(new.add("MatMulNBits", name, *inputs, domain=DOMAIN, **stored.blocks, **sizes))


def _replace_table(
    graph: Any,
    plan: Mapping[str, Variant],
    known: Mapping[str, Inputs],
    head: Stored | None,
) -> list[str]:
    gather = next((node for node in graph if node.name == EMBEDDING), None)
    table = gather.inputs[0] if gather is not None else None
    if gather is None or table is None or table.const_value is None or EMBEDDING not in plan:
        return []
    rows, columns = (int(size) for size in table.shape)
    if columns % _LEAST_BLOCK:
        return []
    shared = head is not None and (head.outputs, head.inputs) == (rows, columns)
    if head is None or not shared:
        head = _store(graph, gather, table.const_value.numpy(), plan, known)
    variant = head.variant
    new = Inserter(graph, gather, "/model/embed_tokens/")
    # In the graph, not in the data file: shape inference wants to see it.
    shape = new.add("Constant", "Shape", value_ints=[rows, columns * variant.bits // 8])
    codes = new.add("Reshape", "Reshape", head.codes, shape)
    kind = "GatherBlockQuantized"
    inputs = (codes, gather.inputs[1], head.scales, *head.zeros)
    axes = {"gather_axis": 0, "quantize_axis": 1}
    new.replace_by(new.add(kind, kind, *inputs, domain=DOMAIN, **head.blocks, **axes))
    if not table.uses():
        graph.initializers.pop(str(table.name))
    if shared:
        return [f"the embedding table shares the {variant.bits}-bit weights of the output layer"]
    return [f"the embedding table is stored in {variant.bits} bits"]
