"""What decides the bytes of each file, as hashes: builds with the same key are the same build."""

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantize.gguf.imatrixfile import is_matrix
from quantize.manifest import Source
from quantize.options import Options
from quantize.recipes.recipe import Recipe
from quantize.source import SourceModel
from quantize.stages.stages import stage_key
from quantize.stages.verify import digest
from runtimes.machine import installed

_COMMON = ("torch", "transformers", "tokenizers")
_TOOLS = {
    "gguf": (*_COMMON, "llama-cpp-python"),
    "onnx": (
        *_COMMON,
        *("onnx", "onnx_ir", "onnxruntime", "onnxruntime-gpu"),
        *("onnxruntime-genai", "onnxruntime-genai-cuda"),
    ),
}
# Tokenizers, templates, configurations, and the model card, from which the converter takes names.
_SMALL = {".json", ".jinja", ".model", ".txt", ".md", ".py", ".tiktoken", ".spm"}


def versions(formats: Iterable[str]) -> dict[str, str]:
    """The tools that make files of these formats, as far as they are installed."""
    return installed.versions(dict.fromkeys(name for fmt in formats for name in _TOOLS[fmt]))


def source_inputs(source: SourceModel, fingerprint: Source) -> dict[str, Any]:
    """The weights and configuration by their hash, and every small file that tools may read."""
    small = {}
    for path in sorted(source.folder.iterdir() if source.folder.is_dir() else ()):
        if path.suffix in _SMALL and path.is_file() and path not in source.weights:
            small[path.name] = digest(path).sha256
    whole = hashlib.sha256(repr(small).encode()).hexdigest()
    return {**dataclasses.asdict(fingerprint), "small_files": whole}


def export_key(source: dict[str, Any]) -> str:
    """The half-precision GGUF file."""
    return stage_key("export", {"source": source, "tools": versions(["gguf"])})


def imatrix_key(source: dict[str, Any], recipe: Recipe, options: Options) -> str | None:
    """The importance matrix that ``recipe`` takes; None if there is none for it."""
    if options.imatrix is None or recipe.format != "gguf" or recipe.is_float:
        return None
    given = digest(options.imatrix).sha256
    return stage_key("imatrix", {"source": source, "given": given, "tools": versions(["gguf"])})


def calibration(recipe: Recipe, options: Options) -> Path | None:
    """The text that ``recipe`` smooths activations by: the one that an importance matrix would be
    computed from, for the recipes that round activations."""
    given = options.imatrix
    return given if given and recipe.precision == "w8a8" and not is_matrix(given) else None


def build_key(source: dict[str, Any], recipe: Recipe, options: Options) -> str:
    """One file."""
    own = dataclasses.asdict(recipe)
    for name in ("advice", "limits", "bits_per_weight", "needs_imatrix"):  # change no byte
        own.pop(name)
    inputs: dict[str, Any] = {"recipe": own, "tools": versions([recipe.format])}
    if recipe.format == "gguf":
        inputs["export"] = export_key(source)
        inputs["imatrix"] = imatrix_key(source, recipe, options)
        inputs["overrides"] = list(options.overrides.items())  # the first that matches counts
    else:
        inputs |= {"source": source, "target": options.target}
        if text := calibration(recipe, options):
            inputs["calibration"] = digest(text).sha256
    return stage_key("build", inputs)
