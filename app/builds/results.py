"""Built files of a folder: their table, and their chart of size against quality."""

import dataclasses
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantize.manifest import NAME, FileEntry, entry_path, load_manifest, write_manifest
from quantize.report.facts import (
    Point,
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
    """A built file and its cells in the table."""

    entry: FileEntry
    best: bool  # the recommended one
    cells: tuple[str, ...]
    path: Path

    @property
    def recipe(self) -> str:
        """Name of the recipe, or of the target."""
        return self.entry.recipe


@dataclass(frozen=True, slots=True)
class Result:
    """The files of ``folder``."""

    folder: Path
    model: str
    headings: tuple[str, ...]
    rows: tuple[FileRow, ...]
    advice: str  # recommends a file, where they were measured
    points: tuple[Point, ...]  # the measured files

    @property
    def report(self) -> Path | None:
        """The page with all figures, if it is there."""
        path = self.folder / REPORT
        return path if path.is_file() else None


def read_result(folder: Path) -> Result:
    """Read ``folder`` as it is now; figures that may not be compared with the others are left to
    the report. Raises ModelError without a readable manifest."""
    main, *apart = comparable_parts(load_manifest(folder))
    bare = [
        dataclasses.replace(entry, quality=None, fidelity=None, speed=None)
        for part in apart
        for entry in part.files
    ]
    manifest = dataclasses.replace(main, files=(*main.files, *bare))
    entries = sorted(manifest.files, key=lambda e: (e.bytes, e.recipe))
    columns = {
        heading: COLUMNS[name].of
        for name, heading in _HEADINGS.items()
        if any(map(COLUMNS[name].of, entries))
    }
    best, chart = recommended(manifest.files), make_chart(manifest.files)
    advice = sentence(manifest, best) if best else ""
    if best and not all(is_steady(entry.speed) for entry in entries if entry.speed):
        advice += "; speeds with * were measured on a busy machine and are not compared"
    rows = [
        FileRow(e, e == best, tuple(of(e) or "-" for of in columns.values()), folder / e.path)
        for e in entries
    ]
    points = chart.points if chart else ()
    return Result(folder, manifest.model.name, tuple(columns), tuple(rows), advice, points)


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
