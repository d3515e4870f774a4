"""The recipes as points: what each would take, against how far from the original it would be."""

from collections.abc import Sequence

from app.builds.prospects import Prospect, Prospects
from app.tui.widgets.axis import Axis
from app.tui.widgets.chart import Chart, Mark
from quantize.recipes.recipe import PRESETS

_MEASURED, _PUBLISHED = "●", "○"
_GIGA = 2e9  # bytes, from which on the axis is in GB


class RecipeChart(Chart):
    """Left is smaller, lower is closer. The chosen ones stand out; one whose distance nobody has
    measured has no point. Without a model the sizes are bits a weight."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(y=Axis("KL", log=True), id=id, classes="pane")
        self.border_title = "Size against KL from the original"

    def show_recipes(self, found: Prospects, chosen: Sequence[str], current: str) -> None:
        """``current`` is under the cursor."""
        known = [one for one in found.recipes.values() if one.kl]
        sized = any(one.bytes for one in known)
        large = any((one.bytes or 0) >= _GIGA for one in known)
        self.x = Axis(("GB" if large else "MB") if sized else "bits a weight")
        unit = 1e9 if large else 1e6

        def size(one: Prospect) -> float:
            return (one.bytes or 0) / unit if sized else one.recipe.bits_per_weight

        def mark(one: Prospect) -> Mark:
            name, kl = one.recipe.name, one.kl or 0.0
            label = f"[{name}]" if name == current else name
            color = "$text-primary" if name in chosen else "$text-muted"
            return Mark(size(one), kl, label, _MEASURED if one.measured else _PUBLISHED, color)

        def rank(one: Prospect) -> tuple[bool, bool, bool]:
            """Who comes first has its name beside it where room is scarce."""
            name = one.recipe.name
            return name != current, name not in chosen, name not in PRESETS

        told = {
            f"{_MEASURED} measured here": any(one.measured for one in known),
            f"{_PUBLISHED} what llama.cpp publishes of Llama-3-8B": not all(
                one.measured for one in known
            ),
        }
        self.border_subtitle = "   ".join(text for text, there in told.items() if there)
        self.show((), [mark(one) for one in sorted(known, key=rank)])
