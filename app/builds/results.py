"""What a folder of built files amounts to: its table, and its chart of size against quality."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from app.builds.plot import draw
from quantize.manifest import FileEntry, load_manifest
from quantize.report.chart import Chart, make_chart
from quantize.report.facts import (
    comparable_parts,
    is_steady,
    recommended,
    sentence,
)
from quantize.report.table import COLUMNS

REPORT = "report.html"

_HEADINGS = {
    "size": "MB",
    "bits": "bits",
    "kl": "KL",
    "top": "same top",
    "accuracy": "accuracy",
    "decode": "tok/s",
    "decode_16": "x16 tok/s",
    "peak": "peak MB",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A file."""

    mark: str  # its letter in the chart; "" without one
    recipe: str
    cells: tuple[str, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class Result:
    """The files of ``folder``."""

    folder: Path
    model: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...]
    advice: str  # recommends a file, where they were measured
    chart: Chart | None

    @property
    def report(self) -> Path | None:
        """The page with all figures, if it is there."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    def plot(self, width: int, height: int) -> list[str]:
        """The chart as lines of text; none without measurements or in too little room."""
        marks = {row.recipe: row.mark for row in self.rows}
        return draw(self.chart, marks, width, height) if self.chart else []


def read_result(folder: Path) -> Result:
    """What ``folder`` holds now; figures that may not be compared with the others are left to the
    report. Raises ModelError without a readable manifest."""
    main, *apart = comparable_parts(load_manifest(folder))
    bare = [
        dataclasses.replace(entry, quality=None, fidelity=None, speed=None)
        for part in apart
        for entry in part.files
    ]
    manifest = dataclasses.replace(main, files=(*main.files, *bare))
    chart = make_chart(manifest.files)
    order = [point.label for point in chart.points] if chart else []
    marks = dict(zip(order, ascii_uppercase, strict=False))  # from the smallest file on
    entries = sorted(manifest.files, key=lambda e: (e.bytes, e.recipe))
    columns = [
        (heading, COLUMNS[name].of)
        for name, heading in _HEADINGS.items()
        if any(map(COLUMNS[name].of, entries))
    ]
    best = recommended(manifest.files)
    return Result(
        folder=folder,
        model=manifest.model.name,
        headings=tuple(heading for heading, _ in columns),
        rows=tuple(
            Row(
                marks.get(e.recipe, ""),
                e.recipe,
                tuple(of(e) or "-" for _, of in columns),
                folder / e.path,
            )
            for e in entries
        ),
        advice=sentence(manifest, best) + _remark(entries) if best else "",
        chart=chart,
    )


def _remark(entries: Sequence[FileEntry]) -> str:
    steady = all(is_steady(entry.speed) for entry in entries if entry.speed)
    return "" if steady else "; speeds with * were measured on a busy machine and are not compared"
