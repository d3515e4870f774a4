"""Built files of a folder: their table, their chart of size against quality, and of a file that was
built for a target its types, as layers against roles."""

import dataclasses
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantize.manifest import NAME, FileEntry, entry_path, load_manifest, write_manifest
from quantize.recipes import Format
from quantize.report.facts import (
    SizeChart,
    bits_of,
    by_layer,
    comparable_parts,
    depth,
    is_steady,
    make_chart,
    recommended,
    sentence,
    summary,
)
from quantize.report.table import COLUMNS
from runtimes.errors import ModelError
from runtimes.machine.locks import holder_of
from runtimes.untrusted import inside, remove


@dataclass(frozen=True, slots=True)
class Cell:
    """A tensor's type: the bits in its name, and how dark it is drawn (0 to 1)."""

    kind: str
    digit: str
    depth: float


@dataclass(frozen=True, slots=True)
class TypeMap:
    """``roles`` are such as "attn_v", each with a cell for every one of ``layers``, None where a
    layer has no such tensor. ``others`` belong to no layer. ``told`` is what was predicted and
    measured, and what the next megabyte buys."""

    layers: tuple[int, ...]
    roles: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    others: tuple[tuple[str, Cell], ...]
    told: str

    @property
    def kinds(self) -> tuple[tuple[Cell, int], ...]:
        """Every type that is in use, the fewest bits first, and how many tensors have it."""
        cells = [cell for _, row in self.roles for cell in row if cell is not None]
        counts = Counter([*cells, *(cell for _, cell in self.others)])
        return tuple(sorted(counts.items(), key=lambda found: (found[0].depth, found[0].kind)))


def type_map(entry: FileEntry) -> TypeMap | None:
    """None for a file that was built by a recipe."""
    if entry.allocation is None:
        return None
    layers, others = by_layer(entry.allocation.types)
    names: Iterable[str] = dict.fromkeys(role for row in layers.values() for role in row)
    return TypeMap(
        tuple(layers),
        tuple(
            (name, tuple(_cell(row[name]) if name in row else None for row in layers.values()))
            for name in sorted(names)
        ),
        tuple((name.removesuffix(".weight"), _cell(kind)) for name, kind in others.items()),
        summary(entry, entry.allocation),
    )


def _cell(kind: str) -> Cell:
    found = re.search(r"\d+", kind)
    bits = int(found[0]) if found else round(bits_of(kind))
    return Cell(kind, str(bits) if bits < 10 else "F", depth(kind))


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

    recipe: str
    format: Format
    best: bool  # the recommended one

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
                tuple(of(e) or "-" for _, of in columns),
                folder / e.path,
                type_map(e),
            )
            for e in entries
        ),
        advice=sentence(manifest, best) + remark if best else "",
        chart=make_chart(manifest.files),
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
