"""The recipes as points: what each would take, against how far from the original it would be."""

from collections.abc import Sequence
from itertools import pairwise

from app.builds.prospects import RUNTIMES, Prospect, Prospects
from app.builds.results import FileRow, Result
from app.tui.widgets.chart import Axis, Chart, Mark, Series
from quantize.recipes import PRESETS
from quantize.report.facts import Point

_MEASURED, _PUBLISHED = "●", "○"
# The chart of size against divergence: which files are worth having.


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


# Of each format: the colour of its points, and their form, for who sees no colours.
_LOOKS = {"gguf": ("$text-secondary", "●"), "onnx": ("$text-success", "◆")}
_STAR = "★"
_STEPS = 24  # between two points of the front
_CHOSEN = "$text-primary"
_GIGA_BYTES = 2000  # megabytes, from which on an axis is in GB


class FrontChart(Chart):
    """Left is smaller, lower is closer to the original. The line is the front: no other file is as
    small and closer. The recommended file has a star."""

    def __init__(self, id: str | None = None) -> None:
        empty = "Each file that is measured becomes a point here."
        super().__init__(x=Axis("MB"), y=Axis("KL", log=True), empty=empty, id=id, classes="pane")
        self.border_title = "Size against KL from the original"

    def show_result(self, result: Result | None, current: str | None = None) -> None:
        """The files of ``result``, and of them ``current``, which stands out."""
        points = result.chart.points if result is not None and result.chart else ()
        rows = {row.recipe: row for row in result.rows} if result is not None else {}
        scale = 1000.0 if any(point.megabytes >= _GIGA_BYTES for point in points) else 1.0
        self.x = Axis("GB" if scale > 1 else "MB")
        front = _straight([(p.megabytes / scale, p.divergence) for p in points if p.on_front])
        series = [Series("front", front, color="$border-blurred")] if len(front) > 1 else []
        for kind, (color, marker) in _LOOKS.items():
            own = [p for p in points if rows[p.label].format == kind]
            if own:
                at = [(p.megabytes / scale, p.divergence) for p in own]
                series.append(Series(RUNTIMES[kind], at, "points", color, marker))
        # Who comes first has its name: the one under the cursor, then the recommended one.
        order = sorted(points, key=lambda p: (p.label != current, not rows[p.label].best))
        marks = [_mark(p, rows[p.label], scale, current=p.label == current) for p in order]
        self.border_subtitle = f"{_STAR} recommended" if any(r.best for r in rows.values()) else ""
        self.show(series, marks)


def _straight(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """``points`` with others between them, so that what joins them is straight on a logarithmic
    axis."""
    made = list(points[:1])
    for (x, y), (to_x, to_y) in pairwise(points):
        shares = [step / _STEPS for step in range(1, _STEPS + 1)]
        made += [(x + (to_x - x) * share, y * (to_y / y) ** share) for share in shares]
    return made


def _mark(point: Point, row: FileRow, scale: float, *, current: bool) -> Mark:
    color, marker = _LOOKS[row.format]
    if row.best:
        marker = _STAR
    label = f"[{point.label}]" if current else point.label
    x = point.megabytes / scale
    return Mark(x, point.divergence, label, marker, _CHOSEN if current or row.best else color)
