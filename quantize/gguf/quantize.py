"""Half-precision GGUF file to a smaller type."""

from __future__ import annotations

from pathlib import Path

from quantize.process import run_child
from quantize.recipe import Recipe


def quantize_gguf(source: Path, out: Path, recipe: Recipe, work: Path) -> list[str]:
    """Write ``source`` to ``out`` in the recipe's type; returns what the user should know."""
    if recipe.name == "f16":
        out.hardlink_to(source)  # the export itself, which other recipes still read
        return []
    notes: list[str] = run_child(
        "quantize.gguf.quantize_child:quantize",
        {"source": str(source), "out": str(out), "ftype": recipe.ftype},
        what=f"quantizing to {recipe.name}",
        work=work,
    )
    return notes
