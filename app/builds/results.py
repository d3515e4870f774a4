"""What a folder of built files amounts to: its table, and its chart of size against quality."""

import dataclasses
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.builds.types import TypeMap, type_map
from quantize.manifest import NAME, entry_path, load_manifest, write_manifest
from quantize.recipes import Format
from quantize.report.facts import (
    SizeChart,
    comparable_parts,
    is_steady,
    make_chart,
    recommended,
    sentence,
)
from quantize.report.table import COLUMNS
from runtimes.errors import ModelError
from runtimes.machine.locks import holder_of
from runtimes.untrusted import inside, remove

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
class FileRow:
    """A file."""

    recipe: str
    format: Format
    best: bool  # the recommended one
    measured: bool  # whether it has a point in the chart
    cells: tuple[str, ...]
    path: Path
    types: TypeMap | None = None  # of a file that was built for a target


@dataclass(frozen=True, slots=True)
class Result:
    """The files of ``folder``."""

    folder: Path
    model: str
    headings: tuple[str, ...]
    rows: tuple[FileRow, ...]
    advice: str  # recommends a file, where they were measured
    chart: SizeChart | None

    @property
    def report(self) -> Path | None:
        """The page with all figures, if it is there."""
        path = self.folder / REPORT
        return path if path.is_file() else None


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
    drawn = {point.label for point in chart.points} if chart else set()
    entries = sorted(manifest.files, key=lambda e: (e.bytes, e.recipe))
    columns = [
        (heading, COLUMNS[name].of)
        for name, heading in _HEADINGS.items()
        if any(map(COLUMNS[name].of, entries))
    ]
    best = recommended(manifest.files)
    remark = "; speeds with * were measured on a busy machine and are not compared"
    if all(is_steady(entry.speed) for entry in entries if entry.speed):
        remark = ""
    return Result(
        folder=folder,
        model=manifest.model.name,
        headings=tuple(heading for heading, _ in columns),
        rows=tuple(
            FileRow(
                e.recipe,
                e.format,
                best is not None and e.recipe == best.recipe,
                e.recipe in drawn,
                tuple(of(e) or "-" for _, of in columns),
                folder / e.path,
                type_map(e),
            )
            for e in entries
        ),
        advice=sentence(manifest, best) + remark if best else "",
        chart=chart,
    )


def remove_file(folder: Path, recipe: str) -> None:
    """Delete a built file, and take it out of the manifest and the report. Raises ModelError for a
    folder that a run is writing into, or without such a file."""
    from quantize.children import run_child
    from quantize.report.write import write_report

    if (builder := holder_of(folder)) is not None:
        raise ModelError(f"process {builder} builds into {folder} now: wait for it, or stop it")
    manifest = load_manifest(folder)
    entry = manifest.entry(recipe)
    if entry is None:
        raise ModelError(f"{folder} has no {recipe} any more")
    entry_path(folder, entry)
    inside(folder, entry.path, str(folder / NAME))
    left = manifest.without(recipe)
    write_manifest(folder, left)  # first: what is listed is there
    remove(folder, entry.path, str(folder / NAME))
    if left.files and (folder / REPORT).is_file():
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as work:
            call = partial(write_report, folder, left)
            run_child(call, "writing the report", Path(work))
