"""report.png: the chart of the page, drawn by matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantize.manifest import Manifest
from quantize.report.chart import Chart, make_chart
from quantize.report.facts import comparable_parts, megabytes, recommended, sentence
from quantize.report.svg import offsets

_DPI = 150
_INK, _SOFT, _MARK = "#1b1f24", "#59636e", "#0a5fd0"


def draw_picture(manifest: Manifest, path: Path) -> None:
    """Write the picture to ``path``: 1350 x 900 pixels. Without measurements, sizes alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    name = manifest.model.name
    manifest, *apart = comparable_parts(manifest)
    best, chart = recommended(manifest.files), make_chart(manifest.files)
    heading = f"{name}, quantized" + (f"\n{sentence(manifest, best)}" if best else "")
    # Names may hold a dollar sign, which would start a formula.
    axes.set_title(heading, loc="left", fontsize=11, color=_INK, parse_math=False, wrap=True)
    if chart is None:
        entries = [entry for part in (manifest, *apart) for entry in part.files]
        bars = axes.barh([e.recipe for e in entries], [e.bytes / 1e6 for e in entries], color=_MARK)
        axes.bar_label(bars, [megabytes(e.bytes) for e in entries], padding=4)
        axes.set_xlabel("size on disk, MB")
        axes.margins(x=0.12)
        axes.invert_yaxis()
    else:
        front = [p for p in chart.points if p.on_front]
        xs = [front[0].megabytes, *(p.megabytes for p in front), chart.x[1]]
        ys = [chart.y[1], *(p.divergence for p in front), front[-1].divergence]
        axes.step(
            *(xs, ys, "--"),
            where="post",
            color=_MARK,
            label="nothing else is as small and as close",
        )
        for point in chart.points:
            axes.plot(
                *(point.megabytes, point.divergence, "o"),
                color=point.colour,
                markersize=12,
                markeredgecolor=_INK,
            )
        _label(axes, chart)
        axes.set(xlim=chart.x, ylim=chart.y, yscale="log")
        axes.set_yticks(chart.y_ticks, [f"{tick:g}" for tick in chart.y_ticks])
        axes.minorticks_off()
        axes.set_xlabel("size on disk, MB", color=_SOFT)
        axes.set_ylabel("mean KL divergence from the original, nats", color=_SOFT)
        axes.grid(color="#d1d9e0", linewidth=0.6)
        axes.legend(loc="upper right", frameon=False, labelcolor=_SOFT)
        if chart.speeds and chart.speeds[0] < chart.speeds[1]:
            scale = ScalarMappable(LogNorm(*chart.speeds), "viridis")
            bar = figure.colorbar(scale, ax=axes, format="%.0f", ticks=list(chart.speeds))
            bar.minorticks_off()
            bar.set_label("decode, tokens per second", color=_SOFT)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # The same manifest gives the same bytes.
    figure.savefig(path, format="png", metadata={"Software": None})


def _label(axes: Any, chart: Chart) -> None:
    """Names beside the points, on the sides that the page's chart chose."""
    for point, (x, y, anchor) in zip(chart.points, offsets(chart), strict=True):
        axes.annotate(
            point.label,
            (point.megabytes, point.divergence),
            (x, y),
            textcoords="offset points",
            ha={"start": "left", "end": "right", "middle": "center"}[anchor],
            fontsize=10,
            color=_INK,
            parse_math=False,
        )
