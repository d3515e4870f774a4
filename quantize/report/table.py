"""The table at the end of a build."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from quantize.manifest import FileEntry, Manifest
from quantize.report.facts import (
    ACCURACY,
    BITS,
    PARITY,
    SIZE,
    Figure,
    comparable_parts,
    is_steady,
    megabytes,
    of_fidelity,
    texts_of,
)
from quantize.terminal import Console
from runtimes.untrusted import visible

_PIPE_WIDTH = 160  # a pipe has no width of its own; no file name should be broken in two
_WITH_NAMES = 140  # characters from which on the files' names fit, too
_WITH_ALL = 114  # below it, figures that matter less are left to report.html


def _speed(name: str) -> Callable[[FileEntry], str]:
    """Tokens a second, with a star where they may not be compared with others."""

    def text(entry: FileEntry) -> str:
        speed = entry.speed
        return f"{getattr(speed, name):,.0f}{'*' * (not is_steady(speed))}" if speed else ""

    return text


# Short enough for a terminal.
COLUMNS = {
    "size": SIZE,
    "bits": replace(BITS, heading="bits"),
    "parity": replace(PARITY, heading="same\ntokens", wide=True),
    "accuracy": replace(ACCURACY, heading="accu-\nracy"),
    "perplexity": Figure(
        "perplex-\nity",
        of_fidelity(lambda f: f"{f.perplexity.value:.4g}"),
        wide=True,
        original=lambda m: f"{m.perplexity.value:.4g}" if m.perplexity else "",
    ),
    "kl": Figure("KL\nmean", of_fidelity(lambda f: f"{f.kl_mean:.2g}")),
    "top": Figure("same\ntop", of_fidelity(lambda f: f"{f.same_top:.1%}")),
    "prefill": Figure("prefill\ntok/s", _speed("prefill_tps"), wide=True),
    "decode": Figure("decode\ntok/s", _speed("decode_tps_1")),
    "decode_16": Figure("16 rows\ntok/s", _speed("decode_tps_16")),
    "peak": Figure(
        "peak\nMB",
        lambda e: megabytes(e.speed.peak_bytes) if e.speed and e.speed.peak_bytes else "",
        wide=True,
    ),
}


def print_table(manifest: Manifest, out: Path, recipes: tuple[str, ...]) -> None:
    """Print the builds named in ``recipes`` to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for number, part in enumerate(comparable_parts(manifest)):
        if number == 0 or any(entry.recipe in recipes for entry in part.files):
            if number:
                console.print("Measured otherwise, not to be compared with the above:")
            console.print(build_table(part, recipes, console.width))
        if number == 0 and not all(is_steady(e.speed) for e in part.files if e.speed):
            console.print(
                "* not to be compared: the machine was busy, or that is not recorded", markup=False
            )
    console.print(f"in {out}", soft_wrap=True, markup=False)


def build_table(
    manifest: Manifest,
    recipes: tuple[str, ...],
    width: int = _PIPE_WIDTH,
    figures: Mapping[str, Figure] = COLUMNS,
) -> Table:
    """The original model in the first row, then the builds named in ``recipes``.

    Figures that no build has are left out; where ``width`` is too narrow so are the files' names,
    whose recipe says which they are, and then some figures.
    """
    model = manifest.model
    entries = [entry for entry in manifest.files if entry.recipe in recipes]
    title = f"{_plain(model.name)}: {_plain(model.architecture)},"
    title += f" {model.parameters / 1e6:,.1f} M parameters"
    if model.quality:
        title += f", {model.quality.questions} graded questions"
    table = Table(title=title, title_justify="left", title_style="bold")
    wide, full = width >= _WITH_NAMES, width >= _WITH_ALL
    columns = [c for c in figures.values() if (full or not c.wide) and any(map(c.of, entries))]
    if wide:
        table.add_column("file", overflow="fold")
        table.add_column("format")
    table.add_column("recipe", overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    original, files = texts_of(columns, model, entries)
    names = [_plain(model.name), "original"] if wide else []
    table.add_row(*names, _plain(model.stored), *original, style="dim")
    for entry, texts in zip(entries, files, strict=True):
        names = [_plain(entry.path), _plain(entry.format)] if wide else []
        table.add_row(*names, _plain(entry.recipe), *texts)
    return table


def _plain(text: str) -> str:
    """Text from a manifest as a cell of a table."""
    return escape(visible(text))
