"""What the texts on the command line mean."""

from __future__ import annotations

from collections.abc import Sequence

from quantize.errors import UsageError
from quantize.recipes.recipe import FORMATS, Recipe, choose_recipes, find_recipe


def chosen_recipes(names: Sequence[str], to: str | None, bits: str | None) -> tuple[Recipe, ...]:
    """Named recipes alone, or the presets of --to and --bits, or both when both are given."""
    presets: tuple[Recipe, ...] = ()
    if to is not None or bits is not None or not names:
        presets = choose_recipes(
            formats=_split(to) if to is not None else FORMATS,
            bits=[_number(text) for text in _split(bits)] if bits is not None else (4, 8),
        )
    named = (find_recipe(name) for text in names for name in _split(text))
    return tuple({item.name: item for item in (*presets, *named)}.values())


def parsed_overrides(texts: Sequence[str]) -> dict[str, str]:
    """REGEX=TYPE, in the order given; an expression may hold a = itself."""
    found = {}
    for text in texts:
        pattern, _, kind = text.rpartition("=")
        if not pattern or not kind.strip():
            raise UsageError(f"--override takes REGEX=TYPE, not {text!r}")
        found[pattern] = kind.strip().lower()
    return found


def _split(text: str) -> list[str]:
    return [part.strip().lower() for part in text.split(",") if part.strip()]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--bits takes numbers, not {text!r}") from None
