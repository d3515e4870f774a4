"""The arguments of an `ingot batch` that another process has or had, taken apart but not run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from app.cli.commands.batch import batch


def batch_values(arguments: Sequence[str]) -> dict[str, Any]:
    """Values as they were written, by the parameter's name; empty for what cannot be parsed."""
    command = _batch()
    context = typer.Context(command, info_name="batch", resilient_parsing=True)
    try:
        found, _, _ = command.make_parser(context).parse_args(list(arguments))
    except typer.TyperException:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str | bool)}


@cache
def _batch() -> Any:
    """The batch command by itself: what its options are called and which of them take a value."""
    alone = typer.Typer(add_completion=False)
    alone.command()(batch)
    return typer.main.get_command(alone)
