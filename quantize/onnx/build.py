"""Hugging Face folder to an ONNX folder that onnxruntime and onnxruntime-genai both load."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from quantize.process import run_child
from quantize.recipe import Recipe
from runtimes.errors import RuntimeMissingError


def require_builder() -> None:
    """Raise RuntimeMissingError when onnxruntime-genai is not installed."""
    if importlib.util.find_spec("onnxruntime_genai") is None:
        raise RuntimeMissingError(
            "ONNX files are made with onnxruntime-genai, which is not installed; use --to gguf, or"
            " install it with: pip install 'ingot[cpu,quantize]'"
        )


def build_onnx(model: Path, recipe: Recipe, work: Path) -> tuple[Path, list[str]]:
    """Build ``model`` by ``recipe`` in ``work``; the folder, and what the user should know."""
    out, cache = work / recipe.name, work / "onnx-cache"
    notes: list[str] = run_child(
        "quantize.onnx.build_child:build",
        {
            "model": str(model),
            "out": str(out),
            "cache": str(cache),
            "precision": recipe.precision,
            "options": dict(recipe.options),
        },
        what=f"building {recipe.name}",
        work=work,
    )
    shutil.rmtree(cache, ignore_errors=True)
    return out, notes
