"""What can be refused before any work: wishes that do not fit together, tools, disk, memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from quantize.build.preflight import memory_parts, require_memory, require_space, space_parts
from quantize.build.stages import stages_size
from quantize.build.workspace import WORK
from quantize.errors import UsageError
from quantize.gguf.converter import converter_folder
from quantize.gguf.imatrixfile import is_matrix
from quantize.gguf.overrides import check_overrides
from quantize.hub.push import require_push
from quantize.manifest import load_manifest
from quantize.onnx.build import require_builder
from quantize.options import Options
from quantize.quality.text import read_text
from quantize.recipes.recipe import Recipe, require_matrix
from quantize.source import SourceModel
from runtimes.errors import ModelError, RuntimeMissingError


def unlisted(out: Path, options: Options) -> list[Recipe]:
    """Recipes of which ``out`` lists no file: those are built for certain."""
    try:
        listed = {entry.recipe for entry in load_manifest(out).files}
    except ModelError:
        listed = set()
    return [recipe for recipe in options.recipes if options.fresh or recipe.name not in listed]


def require_room(
    out: Path, options: Options, source: SourceModel, recipes: Sequence[Recipe]
) -> None:
    """Raise DiskFullError or OutOfMemoryError when ``recipes`` cannot be built here."""
    if recipes:
        parts = space_parts(source, recipes, options)
        require_space(out, parts, reusable=stages_size(out / WORK))
        require_memory(memory_parts(source, recipes, options))


def require_sense(options: Options) -> None:
    """What can be refused before the source is looked at, or downloaded."""
    if options.push is not None:
        require_push(options.push)
    require_matrix(options.recipes, options.imatrix)
    if options.imatrix is not None:
        is_matrix(options.imatrix)  # raises where it cannot be read
    if options.measure.enabled:
        read_text(options.measure.text)
    check_overrides(options.overrides)
    needed = ("torch", "transformers", "matplotlib")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        raise RuntimeMissingError(
            f"{' and '.join(missing)} not installed; building needs: pip install"
            " 'ingot[cpu,quantize]'"
        )
    formats = {recipe.format for recipe in options.recipes}
    if "onnx" in formats:
        require_builder()
    if "gguf" in formats:
        converter_folder()


def require_fitting(options: Options, source: SourceModel, out: Path) -> None:
    """Raise UsageError for what the source, once it is known, does not allow."""
    if source.kind == "hf" and out.resolve() == source.folder.resolve():
        raise UsageError(f"--out is the model's own folder {out}; choose another")
    onnx = [recipe.name for recipe in options.recipes if recipe.format == "onnx"]
    if source.kind == "gguf" and options.source.lora is not None:
        raise UsageError("an adapter is merged into a Hugging Face model, not into a GGUF file")
    if source.kind == "gguf" and onnx:
        raise UsageError(
            f"{', '.join(onnx)} cannot be made from a GGUF file; give the Hugging Face model, or"
            " --to gguf"
        )
