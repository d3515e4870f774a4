"""Memory estimate for ONNX Runtime on a processor, from the graph and its settings.

Measured on onnxruntime 1.31.1 with the graphs of onnxruntime-genai 0.18's builder.
"""

from collections import Counter
from math import prod

from runtimes.backend import MemoryEstimate, StepCost
from runtimes.models.modelfile import ModelFile
from runtimes.onnx.graph_file import WIDE, OnnxGraph, decoder_of, read_graph, shares_buffers
from runtimes.settings import SCORED_CHUNK, RunnerSettings

_FLOAT = 4
_INDEX_BYTES = 8
_MIB = 2**20
# The session's own objects, its thread pool, and the library's code that loading and steps touch.
_RUNTIME_BYTES = 14 * _MIB
# A `tokenizers` tokenizer beside its JSON file; 10 and 12 with 50,000 and 150,000 merges.
_TOKENIZER_FACTOR = 11
# With memory patterns on (the default), the second run of a shape asks for all of its activations
# in one piece, while the pieces of the first run stay in the arena: 1.3 times as much at one shape,
# 1.8 at another. Without them (enable_mem_pattern = False) this is 1.
_ARENA_FACTOR = 1.6
# Operators that run once, while the session is made, when all their inputs are constants.
_FOLDED = frozenset({"Reshape", "Transpose", "Cast", "Unsqueeze", "Squeeze"})
_MATMULS = frozenset({"MatMulNBits", "MatMul", "MatMulInteger", "Gemm"})


def estimate(model: ModelFile, settings: RunnerSettings) -> MemoryEstimate:
    """Everything; raises ModelError for a graph that cannot be read."""
    slots, context = settings.slots, settings.context or model.context_length
    graphs = graphs_of(model)
    in_place = shares_buffers(model.path)
    tokenizer = model.path / "tokenizer.json"
    tokenizer_bytes = tokenizer.stat().st_size if tokenizer.is_file() else 0
    # Of all layers, the slot cache [slots, kv heads, context, head size] and its mask. A graph that
    # gives back past and new together has a buffer of that size for each of the two.
    element = graphs[0].cache_bytes * model.kv_bytes_per_token(1)
    buffers = 0 if in_place else 2 * max(slots, 2)
    return MemoryEstimate(
        sum(map(weight_bytes, graphs)),
        context * (slots * (element + _INDEX_BYTES) + buffers * element),
        # Long passes are on one graph, short ones on the other.
        _compute_bytes(model, graphs[-1], slots, context, settings.batch, in_place),
        _TOKENIZER_FACTOR * tokenizer_bytes + _RUNTIME_BYTES * len(graphs),
    )


def graphs_of(model: ModelFile) -> list[OnnxGraph]:
    """The folder's graph and, where there is one, the wide graph; raises ModelError."""
    wide = model.path / WIDE
    return [graph_of(model), *([read_graph(wide)] if wide.is_file() else [])]


def graph_of(model: ModelFile) -> OnnxGraph:
    """The folder's graph; raises ModelError."""
    return read_graph(model.path / decoder_of(model.path)["filename"])


def weight_bytes(graph: OnnxGraph) -> int:
    """Weights as the session keeps them, file pages that no step reads left out.

    The data file is mapped. A multiplication's weights are packed into memory of the session's own
    (MLAS), and the mapped pages are not read again. MatMulNBits packs its scales too, and a sum for
    each block beside them, which takes as much as the scales. A constant that goes through a
    Reshape (the tied embedding) is folded into a copy. Scales in 16 bits are folded into a copy of
    32, which stays beside what is packed. What is left is read where it lies.
    """
    widened = {
        output: node.inputs[0]
        for node in graph.nodes
        if node.kind == "Cast" and node.inputs and node.inputs[0] in graph.initializers
        for output in node.outputs
    }
    made = (name for node in graph.nodes if node.kind == "Constant" for name in node.outputs)
    constants = {*graph.initializers, *made}
    packed, folded = Counter[str](), set[str]()  # how often, and what also has a copy
    for node in graph.nodes:
        if widened.keys() & set(node.outputs):
            continue
        names = [widened.get(name, name) for name in node.inputs]
        if node.kind in _FOLDED and constants.issuperset(node.inputs):
            folded.update(names)
        elif node.kind in _MATMULS:
            for position, name in enumerate(names[1:], 1):
                sums = (node.kind, position) == ("MatMulNBits", 2)
                packed[name] = max(packed[name], 2 if sums else 1)
    total, wide = 0, set(widened.values())
    for name, tensor in graph.initializers.items():
        nbytes = tensor.nbytes * (packed[name] + (name in folded) or 1)
        if name in wide:  # in twice the bytes, and the copy itself
            nbytes = 2 * (nbytes + tensor.nbytes)
        total += nbytes
    return total


def step_cost(model: ModelFile) -> StepCost | None:
    """By the products with constants: the bytes of matrix and scales in the file. The last product
    makes the logits. None where steps run on two graphs by turns."""
    if (model.path / WIDE).is_file():
        return None
    graph = graph_of(model)
    made = {output: node for node in graph.nodes for output in node.outputs}
    nbytes, products = 0, []
    for node in graph.nodes:
        if node.kind not in _MATMULS or len(node.inputs) < 2:
            continue
        name = node.inputs[1]
        while (source := made.get(name)) is not None and source.kind in _FOLDED and source.inputs:
            name = source.inputs[0]
        if name in graph.initializers:
            read = [name, *(one for one in node.inputs[2:] if one in graph.initializers)]
            nbytes += sum(graph.initializers[one].nbytes for one in read)
            size = node.numbers.get("N", 0) * node.numbers.get("K", 0)
            products.append(size or prod(graph.initializers[name].shape))
    return StepCost(nbytes, sum(products[:-1]), products[-1]) if len(products) > 1 else None


def _compute_bytes(
    model: ModelFile, graph: OnnxGraph, slots: int, context: int, batch: int, in_place: bool
) -> int:
    """The arena after the longest prefill, and the logits.

    Kernels work out of place: in floats per token the feed-forward block holds 3 times its width
    and 4 hidden states, the attention block before it 5 times the width of queries, keys and values
    together; the arena keeps both. Fitted to two shapes at 64 to 1000 tokens; the context's length
    does not matter. Where attention is made of single operators it does: each head's scores are
    there for every token of the step and of the context, before and after the softmax.
    """
    tokens = min(batch, context)
    scores = 0 if in_place else 2 * model.heads * tokens * context
    attention = (model.heads + 2 * model.kv_heads) * model.head_dim
    wide = 3 * _widest(model, graph)
    activations = int(_ARENA_FACTOR * tokens * (wide + 4 * model.hidden + 5 * attention))
    logits = (slots + (SCORED_CHUNK if graph.pruned else 2 * tokens)) * model.vocab_size
    return _FLOAT * (activations + scores + logits)


def _widest(model: ModelFile, graph: OnnxGraph) -> int:
    """The widest output of a multiplication but the logits: rows of [N, blocks, bytes] for
    MatMulNBits, columns of [K, N] for the others."""
    widths = [0]
    for node in graph.nodes:
        tensor = graph.initializers.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.kind in _MATMULS and tensor and tensor.shape:
            widths.append(tensor.shape[0 if node.kind == "MatMulNBits" else -1])
    return max((width for width in widths if width != model.vocab_size), default=0)
