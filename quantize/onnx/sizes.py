"""How large an ONNX folder of each recipe will be, by the shapes of the weights: what
onnxruntime-genai's builder and our rewriting of its graph store for each."""

import math

from quantize.onnx.build import builder_may_know
from quantize.recipes.bits import FileSize
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from quantize.source.shapes import Shapes, weights_in

_FLOAT = 32.0
_BLOCK = 32  # weights that share a scale
_SCALE = _FLOAT / _BLOCK
_ZERO8 = 8 / _BLOCK  # a zero point of 8 bits for each block
_EIGHT = 8 + _SCALE
_TABLE = _EIGHT + _ZERO8  # an embedding that is not the output layer's matrix
_GRAPH = 9000  # bytes of the graph for each layer, about
_WITH_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_SENSITIVE = ("attn_q", "attn_k", "attn_v", "attn_qkv", "ffn_down")


def onnx_size(source: SourceModel, shapes: Shapes, recipe: Recipe) -> FileSize | None:
    """Of ``recipe``'s folder; None for an architecture that the builder does not know."""
    if source.kind != "hf" or not builder_may_know(source.architecture):
        return None
    bits = sum(
        math.prod(shape) * _bits(name, shape, shapes, recipe)
        for name, shape in shapes.weights.items()
    )
    if recipe.precision == "int8" and not _has_head(shapes):
        bits += math.prod(shapes.weights.get("token_embd.weight", (0,))) * _ZERO8
    weights = int(bits / 8)
    beside = sum(
        (source.folder / name).stat().st_size
        for name in _WITH_TOKENIZER
        if (source.folder / name).is_file()
    )
    whole = weights + _positions(shapes) + _GRAPH * shapes.layers + beside
    return FileSize(whole, bits / weights_in(shapes.weights))


def _bits(name: str, shape: tuple[int, ...], shapes: Shapes, recipe: Recipe) -> float:
    """Bits that a weight of that tensor takes."""
    if len(shape) < 2 or recipe.precision == "fp32":
        return _FLOAT
    role = name.split(".")[-2]
    if role == "token_embd" and _has_head(shapes):
        return _TABLE if shape[0] % _BLOCK == 0 else _FLOAT
    if recipe.precision == "int8":
        return _EIGHT
    if recipe.precision == "w8a8":
        return 8 + _FLOAT / shape[0]  # a scale for each output channel
    if recipe.options.get("algo_config") == "rtn":
        return 4 + _SCALE
    layer = int(name.split(".")[1]) if name.startswith("blk.") else None
    last = role in ("token_embd", "output")
    if last or (role in _SENSITIVE and layer is not None and _upgraded(layer, shapes.layers)):
        return _EIGHT + _ZERO8
    return 4 + _SCALE + 4 / _BLOCK


def _upgraded(layer: int, layers: int) -> bool:
    """Whether "k_quant_mixed" gives a layer's most sensitive matrices 8 bits
    (``make_matmul_mixed_precision`` of the builder's base.py)."""
    return layer < layers / 8 or layer >= 7 * layers / 8 or (layer - round(layers / 8)) % 3 == 2


def _has_head(shapes: Shapes) -> bool:
    """Whether the output layer has a matrix of its own."""
    return "output.weight" in shapes.weights


def _positions(shapes: Shapes) -> int:
    """The tables of sines and cosines; models with two bases have two pairs."""
    config = shapes.config
    heads = int(config.get("num_attention_heads") or 1)
    size = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    share = float(config.get("partial_rotary_factor") or 1.0)
    pairs = (
        2
        if config.get("rope_local_base_freq")
        or "sliding_attention" in (config.get("rope_parameters") or {})
        else 1
    )
    return pairs * 4 * int(size * share) * int(config.get("max_position_embeddings") or 0)
