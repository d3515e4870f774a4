"""How large an ONNX folder of each recipe will be, by the shapes of the weights: what
onnxruntime-genai's builder and our rewriting of its graph store for each."""

import math
from collections.abc import Mapping

from quantize.onnx.builder import builder_may_know
from quantize.onnx.variants import variants_of
from quantize.recipes.bits import FileSize
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, weights_in

_ROPE = "rope_parameters"
_FLOAT = 32.0
_LEAST_BLOCK = 32
_GRAPH = 9000  # bytes of the graph for each layer, about
_WITH_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_CAREFUL = ("token_embd", "output", "attn_v", "attn_qkv", "ffn_down")
_WITH_VALUES = ("attn_q", "attn_k")


def onnx_size(source: SourceModel, shapes: Shapes, recipe: Recipe) -> FileSize | None:
    """Of ``recipe``'s folder; None for an architecture that the builder does not know."""
    if source.kind != "hf" or not builder_may_know(source.architecture):
        return None
    bits = sum(
        math.prod(shape) * _bits(name, shape, shapes, recipe)
        for name, shape in shapes.weights.items()
    )
    whole = int(bits / 8) + beside_weights(source, shapes)
    return FileSize(whole, bits / weights_in(shapes.weights))


def beside_weights(source: SourceModel, shapes: Shapes) -> int:
    """Bytes of a folder for the graph, the tables of positions, and the tokenizer, about."""
    files = (source.folder / name for name in _WITH_TOKENIZER)
    tokenizer = sum(file.stat().st_size for file in files if file.is_file())
    return _positions(shapes) + _GRAPH * shapes.layers + tokenizer


def one_product_for_qkv(shapes: Shapes) -> bool:
    """Whether the builder makes queries, keys and values by one product: unless norms follow."""
    return "blk.0.attn_q_norm.weight" not in shapes.weights


def table_is_float(shapes: Shapes) -> bool:
    """Whether an embedding table of its own is kept: no block divides its rows."""
    width = shapes.weights["token_embd.weight"][0]
    return width % _LEAST_BLOCK != 0 and "output.weight" in shapes.weights


def _bits(name: str, shape: tuple[int, ...], shapes: Shapes, recipe: Recipe) -> float:
    """Bits that a weight of that tensor takes."""
    if recipe.for_gpus:
        return _FLOAT / 2
    if len(shape) < 2 or recipe.precision == "fp32":
        return _FLOAT
    if recipe.precision == "w8a8":
        return 8 + _FLOAT / shape[0]  # a scale for each output channel
    role = name.split(".")[-2]
    if role == "token_embd" and table_is_float(shapes):
        return _FLOAT
    usual, careful = variants_of(recipe.options)
    picked = role in _CAREFUL or (role in _WITH_VALUES and one_product_for_qkv(shapes))
    variant = careful if picked else usual
    return variant.fitting(shape[0]).bits_per_weight(shape[0])


def _positions(shapes: Shapes) -> int:
    """The tables of sines and cosines; models with two bases have two pairs."""
    heads = shapes.number("num_attention_heads", default=1)
    size = int(shapes.number("head_dim", default=shapes.number("hidden_size") // heads))
    share, rope = shapes.number("partial_rotary_factor", default=1), shapes.config.get(_ROPE)
    local = isinstance(rope, Mapping) and "sliding_attention" in rope
    pairs = 2 if local or shapes.config.get("rope_local_base_freq") else 1
    return pairs * 4 * int(size * share) * int(shapes.number("max_position_embeddings"))
