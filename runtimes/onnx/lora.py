"""LoRA adapters on an ONNX graph: their files read, and a graph with room for several beside its
matrix products.

Beside a product y = x W of a weight come y + ((x A) * mask) B: A [ranks, inputs] and B [ranks,
outputs] have those of several adapters one below the other, and the mask [rows, 1, ranks] is 1
where a rank belongs to the row's adapter. So rows of all adapters go in one pass, and each matrix
is read once. That is less work than to gather a copy of A and B for every row. On a processor ONNX
Runtime makes one operator of the product by A and its transpose.
"""

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtimes.errors import ModelError
from runtimes.models.gguf import GgufHeader, TensorInfo, read_header
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.graph_file import (
    FLOATS,
    Node,
    OnnxGraph,
    ProtoMessage,
    encode,
    integer,
    node,
    parsed,
    value_info,
)

MASK = "lora.mask"
# The builder's names for weights, by those of GGUF files
_PRODUCT = re.compile(r"(?:/model/layers\.(\d+)/(?:attn|mlp))?/(\w+)/MatMul(?:_Q\d+)?")
_ROLES = {
    "qkv_proj": "attn_qkv",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "lm_head": "output",
}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: the node's output, what it multiplies, and the weights that lie in it side
    by side, each with its number of outputs."""

    output: str
    activation: str
    inputs: int
    parts: Mapping[str, int]
    nbytes: int = 4  # of a number that goes in or comes out

    def matrices(self, part: str) -> tuple[tuple[str, int], tuple[str, int]]:
        """The graph's inputs A and B for a weight, with their widths."""
        return (f"lora.{part}.a", self.inputs), (f"lora.{part}.b", self.parts[part])


def _widths(model: ModelFile) -> dict[str, int]:
    """Outputs of queries, keys and values, in the order in which one matrix has them."""
    keys = model.kv_heads * model.head_dim
    return {"attn_q": model.heads * model.head_dim, "attn_k": keys, "attn_v": keys}


def products(graph: OnnxGraph, model: ModelFile) -> list[Product]:
    """The products that adapters may change."""
    found = []
    for one in graph.nodes:
        named, shape = _PRODUCT.fullmatch(one.name), _shape(graph, one)
        if not named or named[2] not in _ROLES or shape is None or not one.outputs:
            continue
        role = f"blk.{named[1]}.{_ROLES[named[2]]}" if named[1] else _ROLES[named[2]]
        inputs, outputs = shape
        parts = {role: outputs}
        if role.endswith(".attn_qkv"):
            parts = {role.replace("attn_qkv", part): n for part, n in _widths(model).items()}
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
    with parsed(path) as model:
        return b"".join(
            encode(7, _graph(model.within(value), wanted)) if number == 7 else bytes(raw)
            for number, value, raw in model.items()
        )


def _graph(graph: ProtoMessage, wanted: Sequence[Product]) -> bytes:
    by_output = {product.output: product for product in wanted}
    found = bytearray()
    for number, value, raw in graph.items():
        product = None
        if number == 1:
            node = graph.within(value)
            product = by_output.get((*node.texts(2), "")[0])
        if product is None:
            found += raw
            continue
        for one in (_renamed(node), *_beside(product)):
            found += encode(1, one)
    element = FLOATS[wanted[0].nbytes]
    found += encode(11, value_info(MASK, element, "lora.rows", 1, "lora.ranks"))
    for product in wanted:
        for part in product.parts:
            for name, columns in product.matrices(part):
                found += encode(11, value_info(name, element, "lora.ranks", columns))
    return bytes(found)


def _renamed(node: ProtoMessage) -> bytes:
    """The product's node; what it was the name of is now the sum."""
    return b"".join(
        encode(2, _base(node.as_text(value))) if number == 2 else bytes(raw)
        for number, value, raw in node.items()
    )


def _base(output: str) -> str:
    return f"{output}/without_lora"


def _beside(product: Product) -> list[bytes]:
    nodes, deltas = [], []
    for part in product.parts:
        (a, _), (b, _) = product.matrices(part)
        steps = ("turned", "down", "own", "delta")
        turned, down, own, delta = (f"lora.{part}.{step}" for step in steps)
        nodes += [
            node("Transpose", (a,), turned),
            node("MatMul", (product.activation, turned), down),
            node("Mul", (down, MASK), own),
            node("MatMul", (own, b), delta),
        ]
        deltas.append(delta)
    if len(deltas) > 1:
        delta = f"lora.{product.output}.delta"
        nodes.append(node("Concat", tuple(deltas), delta, integer("axis", 2)))
    return [*nodes, node("Add", (_base(product.output), delta), product.output)]


# A LoRA adapter's GGUF file, as llama.cpp's converter writes it, for the weights of a graph.


Matrix = npt.NDArray[np.float32]
# Architectures whose converter leaves the rows of weights as they are, or in an order that is
# known here; as GGUF files and as genai_config.json name them.
_ARCHITECTURES = {
    "llama": {"llama", "mistral"},
    "qwen2": {"qwen2"},
    "qwen3": {"qwen3"},
    "phi3": {"phi3"},
    "gemma3": {"gemma3_text"},
}
_TURNED = frozenset({"llama"})  # rows of queries and keys lie as llama.cpp rotates them
_ENDS = (".weight.lora_a", ".weight.lora_b")

# Delta of one weight [outputs, inputs]: the transpose of the second times the first.
# They are [rank, inputs], and [rank, outputs] with the adapter's scale in it.
Pair = tuple[Matrix, Matrix]


def read_adapter_header(path: Path, model: ModelFile) -> GgufHeader:
    """Raises ModelError for a file that is no adapter of this model's architecture."""
    header = read_header(path)
    said = header.metadata
    if (said.get("general.type"), said.get("adapter.type")) != ("adapter", "lora"):
        raise ModelError(f"cannot load the adapter {path}: it is no LoRA adapter")
    if any(name.startswith("adapter.alora.") for name in (*said, *header.array_lengths)):
        raise ModelError(f"{path} is an activated LoRA (aLoRA), which is not supported")
    architecture = str(said.get("general.architecture", ""))
    if model.architecture not in _ARCHITECTURES.get(architecture, ()):
        known = any(model.architecture in names for names in _ARCHITECTURES.values())
        reason = (
            f"it is for {architecture or 'no architecture that it names'}"
            if known
            else "adapters of its architecture cannot be loaded here; merge it: quantize --lora"
        )
        raise ModelError(
            f"the adapter {path} does not fit {model.name}, which is {model.architecture}: {reason}"
        )
    return header


def read_lora(path: Path, model: ModelFile) -> dict[str, Pair]:
    """The pairs by the names of the weights that they change, such as "blk.0.attn_q".

    Weights that are one in the file (queries, keys and values; gate and up) are several here.
    Raises ModelError as ``read_adapter_header`` does, and for matrices that are none.
    """
    header = read_adapter_header(path, model)
    pairs = _pairs(path, header)
    if header.text("general.architecture") in _TURNED:
        heads = {"attn_q": model.heads, "attn_k": model.kv_heads}
        for name, (a, b) in pairs.items():
            if count := heads.get(name.rpartition(".")[2]):
                pairs[name] = a, _turned_back(path, name, b, count)
    return _parted(pairs, model)


def _pairs(path: Path, header: GgufHeader) -> dict[str, Pair]:
    infos = {tensor.name: tensor for tensor in header.tensors}
    names = {name.removesuffix(end) for name in infos for end in _ENDS if name.endswith(end)}
    others = infos.keys() ^ {name + end for name in names for end in _ENDS}
    if others or not names:
        found = min(others, default="no matrix")
        raise ModelError(f"{path}: {found} is no part of an adapter, or missing")
    alpha = header.real("adapter.lora.alpha")
    pairs = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for name in sorted(names):
            a, b = (_matrix(path, data, header.data_begins, infos[name + end]) for end in _ENDS)
            if not 0 < len(a) == b.shape[1]:
                raise ModelError(f"{path}: the matrices of {name} do not belong together")
            scale = alpha / len(a) if alpha else 1.0
            pairs[name] = a, np.ascontiguousarray(b.T) * np.float32(scale)
    return pairs


def _matrix(path: Path, data: mmap.mmap, start: int, info: TensorInfo) -> Matrix:
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    if info.type_name not in kinds or len(info.shape) != 2:
        raise ModelError(f"{path}: {info.name} is no matrix of floats ({info.type_name})")
    at = start + info.offset
    raw = np.frombuffer(data[at : at + info.nbytes], kinds[info.type_name])
    if info.type_name == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32).reshape(info.shape[::-1])


def _turned_back(path: Path, name: str, b: Matrix, heads: int) -> Matrix:
    """Outputs as the checkpoint has them: each head's two halves, which the file interleaves."""
    rank, outputs = b.shape
    if outputs % (2 * heads):
        raise ModelError(f"{path}: {name} has {outputs} outputs, which are no {heads} heads")
    by_head = b.reshape(rank, heads, -1, 2).swapaxes(2, 3)
    return np.ascontiguousarray(by_head.reshape(rank, outputs))


def _parted(pairs: dict[str, Pair], model: ModelFile) -> dict[str, Pair]:
    found = {}
    for name, (a, b) in pairs.items():
        layer, _, role = name.rpartition(".")
        half, odd = divmod(b.shape[1], 2)
        cuts = {role: b.shape[1]}
        if role == "attn_qkv":
            cuts = _widths(model)
        elif role == "ffn_up" and model.architecture == "phi3" and not odd:
            cuts = {"ffn_gate": half, "ffn_up": half}
        at = 0
        for part, width in cuts.items():
            own = np.ascontiguousarray(b[:, at : at + width])
            found[f"{layer}.{part}" if layer else part] = a, own
            at += width
    return found
