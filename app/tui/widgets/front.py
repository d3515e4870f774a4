"""The chart of size against divergence: which files are worth having."""

from collections.abc import Sequence
from itertools import pairwise

from app.builds.prospects import RUNTIMES
from app.builds.results import FileRow, Result
from app.tui.widgets.axis import Axis
from app.tui.widgets.chart import Chart, Mark, Series
from quantize.report.chart import Point

# Of each format: the colour of its points, and their form, for who sees no colours.
_LOOKS = {"gguf": ("$text-secondary", "●"), "onnx": ("$text-success", "◆")}
_STAR = "★"
_STEPS = 24  # between two points of the front
_CHOSEN = "$text-primary"
_GIGA = 2000  # megabytes, from which on an axis is in GB


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
        scale = 1000.0 if any(point.megabytes >= _GIGA for point in points) else 1.0
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
