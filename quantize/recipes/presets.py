"""The list of recipes that `quantize recipes` prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from quantize.recipes.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from rich.table import Table

PRESETS = (
    *("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "iq4_xs"),
    *("onnx-int8", "onnx-w8a8", "onnx-int4", "onnx-int4-rtn"),
)
_HEADINGS = ("recipe", "format", "nominal bits", "advice")


def listing() -> Table | str:
    """A Rich table where stdout is a terminal, else tab-separated lines with a heading."""
    return _table() if sys.stdout.isatty() else _text()


def print_listing() -> None:
    """Print the list to stdout."""
    made = listing()
    if isinstance(made, str):
        sys.stdout.write(made)
        return
    from rich.console import Console

    Console(highlight=False).print(made)


def _groups() -> tuple[list[Recipe], list[Recipe], list[Recipe]]:
    """The presets, llama.cpp's further types, and the references."""
    others = [recipe for name, recipe in RECIPES.items() if name not in PRESETS]
    return (
        [RECIPES[name] for name in PRESETS],
        [recipe for recipe in others if not recipe.is_float],
        [recipe for recipe in others if recipe.is_float],
    )


def _row(recipe: Recipe) -> tuple[str, str, str, str]:
    needs = "; needs --imatrix" if recipe.needs_imatrix else ""
    return recipe.name, recipe.format, f"{recipe.bits_per_weight:.1f}", f"{recipe.advice}{needs}"


def _text() -> str:
    rows = [_HEADINGS, *(_row(recipe) for group in _groups() for recipe in group)]
    return "".join("\t".join(row) + "\n" for row in rows)


def _table() -> Table:
    from rich.table import Table

    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "nominal bits" else "left")
    for group in _groups():
        for recipe in group:
            table.add_row(*_row(recipe))
        table.add_section()
    return table
