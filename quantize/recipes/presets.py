"""The list of recipes that `quantize recipes` prints."""

import sys

from quantize.recipes.recipe import RECIPES, Recipe

PRESETS = (
    *("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "iq4_xs"),
    *("onnx-int8", "onnx-w8a8", "onnx-int4", "onnx-int4-rtn"),
)
_HEADINGS = ("recipe", "format", "nominal bits", "advice")


def print_listing() -> None:
    """Print the presets, llama.cpp's further types, and the references to stdout: a table on a
    terminal, else tab-separated lines with a heading."""
    others = [recipe for name, recipe in RECIPES.items() if name not in PRESETS]
    groups = (
        [RECIPES[name] for name in PRESETS],
        [recipe for recipe in others if not recipe.is_float],
        [recipe for recipe in others if recipe.is_float],
    )
    if not sys.stdout.isatty():
        rows = [_HEADINGS, *(_row(recipe) for group in groups for recipe in group)]
        sys.stdout.write("".join("\t".join(row) + "\n" for row in rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "nominal bits" else "left")
    for group in groups:
        for recipe in group:
            table.add_row(*_row(recipe))
        table.add_section()
    Console(highlight=False).print(table)


def _row(recipe: Recipe) -> tuple[str, str, str, str]:
    needs = "; needs --imatrix" if recipe.needs_imatrix else ""
    return recipe.name, recipe.format, f"{recipe.bits_per_weight:.1f}", f"{recipe.advice}{needs}"
