"""A sweep as tables, a picture, a page and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.frame import Figures, rounded
from app.sweeps import OURS, Sweep, about, by_side, groups, named, tables, verdicts
from quantize.disk import outfile
from quantize.report.picture import LINE, SOFT, save, svg_of
from runtimes.output import html, json_text
from runtimes.untrusted import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".html", ".svg", ".png", ".json")
_ALT = "Generated tokens a second by the number of rows"
_LINES = ("-", "--", ":", "-.")


def as_object(sweep: Sweep) -> Figures:
    """All figures, for programs."""
    found: Figures = rounded(asdict(sweep))
    return found


def draw(sweep: Sweep) -> Figure:
    """Speed by the number of rows: a panel for each length, a colour for each file, a dash for each
    side."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    found = groups(sweep)
    files = list(dict.fromkeys(key for of_length in found.values() for key in of_length))
    sides = list(dict.fromkeys(one.cell.side for one in sweep.measured))
    figure = Figure(figsize=(4.6 * len(found) + 1, 5.2), layout="constrained", facecolor="none")
    every: Any = figure.subplots(1, len(found), squeeze=False)[0]
    colours = colormaps["viridis"]
    for axes, ((prompt, answer), of_length) in zip(every, found.items(), strict=True):
        for key, measured in of_length.items():
            for side, by_rows in by_side(measured).items():
                rows = sorted(rows for rows, one in by_rows.items() if one.tps)
                if not rows:
                    continue
                points = [by_rows[count].tps for count in rows]
                if len(rows) == 1:  # one row at a time, however many there are
                    counts = sorted({one.cell.rows for one in measured})
                    rows, points = [counts[0], counts[-1]], points * 2
                axes.plot(
                    rows,
                    points,
                    _LINES[sides.index(side) % len(_LINES)],
                    marker="o" if side == OURS else None,
                    color=colours(0.85 * files.index(key) / max(len(files) - 1, 1)),
                    label=visible(named(*key) + (f", {side}" if side != OURS else "")),
                )
        counts = sorted({one.cell.rows for of_file in of_length.values() for one in of_file})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, list(map(str, counts)))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_title(f"{prompt} + {answer} tokens", loc="left", fontsize=11, color=SOFT)
        axes.set_xlabel("rows at once", color=SOFT)
        axes.tick_params(color=SOFT, labelcolor=SOFT)
        axes.grid(color=LINE, linewidth=0.6)
        axes.set(axisbelow=True, facecolor="none")
        axes.spines[:].set_color(SOFT)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("generated tokens a second", color=SOFT)
    handles: dict[str, Any] = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, math.ceil(len(handles) / 4)),
        frameon=False,
        labelcolor=SOFT,
        fontsize=9,
    )
    return figure


def render_page(sweep: Sweep) -> str:
    """A page with the picture and all tables."""
    from quantize.report.write import page

    body = ["<h1>One row at a time, and many at once</h1>", f'<p class="soft">{html(about(sweep))}']
    body += ["</p>", svg_of(draw(sweep), _ALT)]
    body += [f"<p>{html(line)}</p>" for line in verdicts(sweep)]
    for title, (head, *rows) in tables(sweep):
        body.append(f"<h2>{html(title)}</h2>")
        cells = "".join(f"<th>{html(name)}</th>" for name in head)
        body.append(f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>')
        body += [f"<tr>{''.join(f'<td>{html(one)}</td>' for one in row)}</tr>" for row in rows]
        body.append("</tbody></table></div>")
    return page("Speed by rows", body)


def write(sweep: Sweep, path: Path) -> None:
    """Write the kind of file that its name ends with. Raises OSError."""
    with outfile(path) as partial:
        if path.suffix == ".json":
            partial.write_text(json_text(as_object(sweep), indent=2) + "\n", encoding="utf-8")
        elif path.suffix == ".html":
            partial.write_text(render_page(sweep), encoding="utf-8")
        else:
            figure = draw(sweep)
            figure.set(facecolor="white", dpi=150)
            save(figure, partial, path.suffix[1:])
