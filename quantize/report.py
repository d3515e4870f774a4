"""The table at the end of a build."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from quantize.manifest import FileEntry, Manifest, ModelInfo

_PIPE_WIDTH = 160  # a pipe has no width of its own; no file name should be broken in two
_FIGURES = ("MB", "same tokens", "accuracy", "prefill tok/s", "decode tok/s", "16 rows tok/s")


def print_table(manifest: Manifest, out: Path, recipes: tuple[str, ...]) -> None:
    """Print the builds named in ``recipes`` to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    console.print(build_table(manifest, recipes))
    console.print(f"in {out}", soft_wrap=True, markup=False)


def build_table(manifest: Manifest, recipes: tuple[str, ...]) -> Table:
    """The original model in the first row, then the builds named in ``recipes``."""
    model = manifest.model
    title = f"{model.name}: {model.architecture}, {model.parameters / 1e6:,.1f} M parameters"
    if model.quality:
        title += f", {model.quality.questions} graded questions"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("file", overflow="fold")
    table.add_column("format")
    table.add_column("recipe")
    for name in _FIGURES:
        table.add_column(name, justify="right")
    table.add_row(*_original(model), style="dim")
    for entry in manifest.files:
        if entry.recipe in recipes:
            table.add_row(*_row(entry))
    return table


def _original(model: ModelInfo) -> tuple[str, ...]:
    accuracy = f"{model.quality.task_accuracy:.1%}" if model.quality else "-"
    return (model.name, "original", "float", "-", "-", accuracy, "-", "-", "-")


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
