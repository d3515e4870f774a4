"""The chart as matplotlib draws it: inside report.html, and as report.png."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.disk import check_outfile
from quantize.errors import UsageError
from quantize.manifest import Manifest
from quantize.report.facts import (
    SizeChart,
    comparable_parts,
    make_chart,
    megabytes,
    recommended,
    sentence,
)
from runtimes.output import html
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALT = "Size of each file against its divergence from the original"
INK, SOFT, LINE, MARK = "#1b1f24", "#59636e", "#d1d9e0", "#0a5fd0"
# The page's variables, which follow the reader's colour scheme.
_VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line", MARK: "mark"}
_COLOURS = 32  # steps of the colour bar; from 50 on it would be a bitmap
# Directions in which a label may lie from its point, the best first. Left of the front and below it
# there is nothing; its line leaves a point to the right.
_FRONT_SIDES = ((-1, 0), (-1, -1), (0, -1), (1, -1), (1, 1), (0, 1), (-1, 1), (1, 0))
_SIDES = ((1, 0), (1, 1), (1, -1), (0, 1), (-1, 0), (-1, 1), (0, -1), (-1, -1))


def draw_svg(chart: SizeChart) -> str:
    """An ``svg`` element whose colours and font are the page's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 5.4), facecolor="none", layout="constrained")
    draw_chart(figure, chart)
    drawn = svg_of(figure, _ALT)
    for number, point in enumerate(chart.points):
        shown = html(f"{point.label}: {point.megabytes:,.1f} MB, KL {point.divergence:.2g}")
        group = f'<g id="point-{number}">'
        drawn = drawn.replace(group, f"{group}<title>{shown}</title>")
    return drawn


def svg_of(figure: Figure, alt: str) -> str:
    """An ``svg`` element for a page: text stays text, INK and its like are the page's colours, and
    the same figure gives the same bytes."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ingot"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", metadata=nothing)
    drawn = stream.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace("xlink:href", "href")
    drawn = re.sub(r' (?:width|height|version|xmlns(?::xlink)?)="[^"]*"', "", drawn, count=5)
    drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{html(alt)}"', 1)
    for colour, name in _VARIABLES.items():
        drawn = drawn.replace(colour, f"var(--{name},{colour})")
    return drawn


def check_output(path: Path, forms: Sequence[str]) -> None:
    """Raises UsageError for a file that cannot be written, whose name ends with none of ``forms``,
    or whose library is not here."""
    if path.suffix not in forms:
        raise UsageError(f"--output {path}: it ends with none of {', '.join(forms)}")
    try:
        check_outfile(path)
        if path.suffix != ".json":
            import matplotlib  # noqa: F401
    except (OSError, ImportError) as error:
        raise UsageError(f"--output {path} cannot be written: {error}") from error


def save(figure: Figure, path: Path, form: str) -> None:
    """Write a figure as "png", the same bytes for the same figure, or "svg"."""
    nothing = {"Software": None} if form == "png" else {"Date": None}
    figure.savefig(path, format=form, metadata=nothing)


def draw_picture(manifest: Manifest, path: Path, form: str = "png") -> None:
    """Write 1350 x 900 pixels, or an SVG, to ``path``. Without measurements, sizes alone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=150, facecolor="white", layout="constrained")
    main, *apart = comparable_parts(manifest)
    best, chart = recommended(main.files), make_chart(main.files)
    heading = f"{visible(manifest.model.name)}, quantized"
    heading += f"\n{visible(sentence(main, best))}" if best else ""
    axes = figure.add_subplot()
    # Names may hold a dollar sign, which would start a formula.
    axes.set_title(heading, loc="left", fontsize=11, color=INK, parse_math=False, wrap=True)
    if chart is None:
        entries = [entry for part in (main, *apart) for entry in part.files]
        bars = axes.barh(
            [visible(e.recipe) for e in entries], [e.bytes / 1e6 for e in entries], color=MARK
        )
        axes.bar_label(bars, [megabytes(e.bytes) for e in entries], padding=4)
        axes.set_xlabel("size on disk, MB")
        axes.margins(x=0.12)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    else:
        draw_chart(figure, chart)
    save(figure, path, form)


def draw_chart(figure: Figure, chart: SizeChart) -> None:
    """Draw ``chart`` into the axes of ``figure``, which are added if it has none."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    axes: Any = figure.gca()
    front = [p for p in chart.points if p.on_front]
    # Steps: between two files of the front the smaller one is the best there is.
    xs = [x for p in front for x in (p.megabytes, p.megabytes)] + [chart.x[1]]
    ys = [chart.y[1]] + [y for p in front for y in (p.divergence, p.divergence)]
    speeds = [p.speed for p in chart.points if p.speed]
    label = "nothing else is as small and as close"
    if not speeds:
        label += "; speed was not measured"
    (steps,) = axes.plot(xs, ys, "--", color=MARK, label=label)
    # Viridis is readable in grey and by the colour-blind.
    scale: Any = ScalarMappable(None, colormaps["viridis"].resampled(_COLOURS))
    if speeds:
        scale.set_norm(LogNorm(min(speeds), max(speeds)))
    for number, point in enumerate(chart.points):
        axes.plot(
            *(point.megabytes, point.divergence, "o"),
            color=scale.to_rgba(point.speed) if point.speed else "#888888",
            markersize=12,
            markeredgecolor=INK,
            gid=f"point-{number}",
        )
    axes.set(xlim=chart.x, ylim=chart.y, yscale="log")
    axes.set_xticks(chart.x_ticks, [f"{tick:,g}" for tick in chart.x_ticks])
    axes.set_yticks(chart.y_ticks, [f"{tick:g}" for tick in chart.y_ticks])
    axes.minorticks_off()
    axes.tick_params(color=SOFT, labelcolor=SOFT)
    axes.set_xlabel("size on disk, MB", color=SOFT)
    axes.set_ylabel("mean KL divergence from the original, nats", color=SOFT)
    axes.grid(color=LINE, linewidth=0.6)
    axes.set(axisbelow=True, facecolor="none")
    axes.spines[:].set_color(SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", frameon=False, labelcolor=SOFT)
    if len(set(speeds)) > 1:
        ends = [min(speeds), max(speeds)]
        bar: Any = figure.colorbar(scale, ax=axes, ticks=ends, format="{x:,.0f}")
        bar.minorticks_off()
        bar.outline.set_visible(False)
        bar.solids.set_edgecolor("face")  # else what is behind shows between its steps
        bar.ax.tick_params(color=SOFT, labelcolor=SOFT)
        bar.set_label("decode, tokens per second", color=SOFT)
    _label_points(figure, axes, chart, steps)


def _label_points(figure: Figure, axes: Any, chart: SizeChart, steps: Any) -> None:
    """Names beside the points, where they lie on nothing and within the axes if there is such a
    place."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # from here on nothing moves
    frame, path = axes.get_window_extent(), steps.get_transform().transform_path(steps.get_path())
    taken = [line.get_window_extent() for line in axes.lines if line.get_gid()]
    for number, point in enumerate(chart.points):
        label = axes.annotate(
            visible(point.label),
            (point.megabytes, point.divergence),
            (0, 0),
            textcoords="offset points",
            fontsize=10,
            color=INK,
            parse_math=False,
            gid=f"label-{number}",
        )
        places = list(itertools.product((9, 15), _FRONT_SIDES if point.on_front else _SIDES))
        costs = []
        for distance, side in places:
            box = _moved(label, distance, side)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            inside = inside and frame.y0 <= box.y0 and box.y1 <= frame.y1
            crossed = path.intersects_bbox(box, filled=False)
            costs.append(box.count_overlaps(taken) + 0.5 * crossed + 10 * (not inside))
        taken.append(_moved(label, *places[costs.index(min(costs))]))


def _moved(label: Any, distance: int, side: tuple[int, int]) -> Any:
    """The box of ``label`` when it lies on that side of its point."""
    x, y = side
    align = {"ha": ("center", "left", "right")[x], "va": ("center", "bottom", "top")[y]}
    label.set(position=(x * distance, y * distance), **align)
    return label.get_window_extent()
