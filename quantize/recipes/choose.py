"""Which recipes the user means, by name, `--to` and `--bits`; the list to choose from."""

import difflib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from quantize.errors import UsageError
from quantize.recipes.recipe import FORMATS, PRESETS, RECIPES, Format, Recipe, recipe_for
from quantize.recipes.target import named_target

_HEADINGS = ("recipe", "format", "nominal bits", "advice")
# Other names that llama.cpp's own tool takes (tools/quantize/quantize.cpp).
_ALIASES = {
    "q3_k": "q3_k_m",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "fp16": "f16",
    "fp32": "f32",
}
# What `--bits` means for each format.
_BY_BITS: dict[tuple[Format, int], str] = {
    ("gguf", 4): "q4_k_m",
    ("gguf", 8): "q8_0",
    ("onnx", 4): "onnx-int4",
    ("onnx", 8): "onnx-int8",
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UsageError with near names for an unknown one."""
    if recipe := known_recipe(name):
        return recipe
    key = name.strip().lower()
    flat = key.replace("-", "_")
    near = difflib.get_close_matches(flat, RECIPES, n=3, cutoff=0.5)
    near += [n for n in difflib.get_close_matches(key, RECIPES, n=3, cutoff=0.5) if n not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "see `quantize recipes`"
    raise UsageError(f"unknown recipe {name!r}: {hint}")


def known_recipe(name: str) -> Recipe | None:
    """The recipe, or the target, of that name. Raises UsageError for a target that is no number."""
    key = name.strip().lower()
    flat = key.replace("-", "_")
    if recipe := RECIPES.get(key) or RECIPES.get(_ALIASES.get(flat, flat)):
        return recipe
    made_in: Format = "onnx" if key.startswith("onnx-") else "gguf"
    target = named_target(key.removeprefix("onnx-"))
    return recipe_for(target, made_in) if target else None


def choose_formats(names: Iterable[str]) -> tuple[Format, ...]:
    """Of ``--to``; raises UsageError for one that there is not, or none."""
    for name in names:
        if name not in FORMATS:
            raise UsageError(f"unknown format {name!r} for --to: choose from {', '.join(FORMATS)}")
    if not (chosen := tuple(fmt for fmt in FORMATS if fmt in names)):
        raise UsageError(f"nothing to build: --to is empty; it takes {', '.join(FORMATS)}")
    return chosen


def choose_recipes(
    *, formats: Sequence[str] = FORMATS, bits: Sequence[int] = (4, 8)
) -> tuple[Recipe, ...]:
    """The presets of ``formats`` and ``bits``; raises UsageError for one that there is not."""
    chosen: dict[str, Recipe] = {}
    for fmt in choose_formats(formats):
        for size in bits:
            preset = _BY_BITS.get((fmt, size))
            if preset is None:
                known = sorted({b for _, b in _BY_BITS})
                raise UsageError(
                    f"no preset of {size} bits: --bits takes {' and '.join(map(str, known))};"
                    " use --recipe for another type"
                )
            chosen[preset] = RECIPES[preset]
    if not chosen:
        raise UsageError("nothing to build: --bits is empty")
    return tuple(chosen.values())


def require_matrix(recipes: Iterable[Recipe], imatrix: Path | None) -> None:
    """Raise UsageError when one of ``recipes`` cannot be made without an importance matrix."""
    needy = [recipe.name for recipe in recipes if recipe.needs_imatrix]
    if needy and imatrix is None:
        raise UsageError(
            f"{', '.join(needy)} cannot be made without an importance matrix, which says which"
            " weights matter: give --imatrix TEXT.txt to compute one from a text (some hundred kB"
            " of what the model is for), or --imatrix FILE with one that llama-imatrix made"
        )


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
    from rich.table import Table

    from quantize.terminal import Console

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
