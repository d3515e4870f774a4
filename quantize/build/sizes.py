"""How large each recipe's file of a model will be, before anything is built: bytes and bits a
weight, with the tensors counted that fall back to a larger type."""

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from quantize.children.process import run_child
from quantize.gguf.sizes import gguf_sizes
from quantize.onnx.sizes import onnx_size
from quantize.recipes.bits import FileSize
from quantize.recipes.recipe import RECIPES, Recipe
from quantize.source import SourceModel
from quantize.source.shapes import shapes_of
from runtimes.errors import IngotError


def predict_sizes(source: SourceModel, recipes: Sequence[Recipe]) -> dict[str, FileSize]:
    """By the recipes' names, within 2% of the files for models of more than some megabytes; without
    those that cannot be told. The headers of the weight files are read, in a child process.

    Raises IngotError for a model that llama.cpp's quantizer does not understand.
    """
    types = tuple(dict.fromkeys(r.ftype for r in recipes if r.format == "gguf"))
    with tempfile.TemporaryDirectory(prefix="ingot-sizes-") as work:
        call = partial(gguf_sizes, source, types)
        made = run_child(call, "looking at the sizes", Path(work)) if types else {}
    shapes = shapes_of(source) if source.kind == "hf" else None
    sizes = {}
    for recipe in recipes:
        if recipe.format == "gguf":
            found = made.get(recipe.ftype)
        else:
            found = onnx_size(source, shapes, recipe) if shapes else None
        if found is not None:
            sizes[recipe.name] = found
    return sizes


def known_sizes(source: SourceModel) -> Mapping[str, FileSize]:
    """``predict_sizes`` of all recipes, once a model; none where they cannot be told: of a model
    that is still on the hub, or that llama.cpp does not know."""
    changed = tuple(path.stat().st_mtime_ns for path in source.weights)
    return _known(source, changed) if source.weights else {}


@lru_cache(maxsize=8)
def _known(source: SourceModel, changed: tuple[int, ...]) -> Mapping[str, FileSize]:
    """``changed`` makes a file that was replaced another one."""
    try:
        return predict_sizes(source, tuple(RECIPES.values()))
    except IngotError:
        return {}
