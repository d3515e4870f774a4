"""The table at the end of a build."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from quantize.manifest import FileEntry, Manifest

_NARROWEST = 118  # a pipe has no width of its own; the table needs this much


def print_table(manifest: Manifest, out: Path, recipes: tuple[str, ...]) -> None:
    """Print the builds named in ``recipes`` to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_NARROWEST)
    model = manifest.model
    quality = model.quality
    title = f"{model.name}: {model.architecture}, {model.parameters / 1e6:,.1f} M parameters"
    if quality:
        title += f"; the float model answers {quality.task_accuracy:.1%} of {quality.questions}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("format")
    table.add_column("recipe")
    for name in ("MB", "same tokens", "accuracy", "prefill tok/s", "decode 1", "decode 16"):
        table.add_column(name, justify="right")
    for entry in manifest.files:
        if entry.recipe in recipes:
            table.add_row(*_row(entry))
    console.print(table)
    console.print(f"in {out}", soft_wrap=True, markup=False)


def _row(entry: FileEntry) -> tuple[str, ...]:
    parity, speed = entry.token_parity, entry.speed
    return (
        entry.path,
        entry.format,
        entry.recipe,
        f"{entry.bytes / 1e6:,.1f}",
        f"{parity.lines - parity.differences}/{parity.lines}" if parity else "-",
        f"{entry.quality.task_accuracy:.1%}" if entry.quality else "-",
        f"{speed.prefill_tps:,.0f}" if speed else "-",
        f"{speed.decode_tps_1:,.0f}" if speed else "-",
        f"{speed.decode_tps_16:,.0f}" if speed else "-",
    )
