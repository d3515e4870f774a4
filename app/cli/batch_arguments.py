"""The arguments of `ingot batch`: what a job's command line says, and the one that says a job."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

import typer

from app.batch.spec import BatchSpec
from app.cli.commands.batch import batch


@lru_cache(maxsize=64)
def batch_spec(arguments: tuple[str, ...]) -> BatchSpec | None:
    """What the arguments after `ingot batch` say; None when the command would refuse them."""
    try:
        said = _command().main(list(arguments), "batch", standalone_mode=False, obj=BatchSpec)
    except typer.TyperException:
        return None
    return said if isinstance(said, BatchSpec) else None


def arguments_of(spec: BatchSpec) -> Iterator[str]:
    """The arguments after `ingot batch` of a job with an output; what is as it would be anyway is
    not said."""
    values, usual = dict(_values(spec)), dict(_values(BatchSpec(spec.input, spec.output)))
    yield from (spec.input, str(spec.output))
    for option in _command().params:
        value = values.get(option.name)
        if value is None or value == usual[option.name]:
            continue
        if isinstance(value, bool):
            yield (option.opts if value else option.secondary_opts)[0]
        else:
            name = max(option.opts, key=len)
            yield from (f"{name}={v}" for v in (value if isinstance(value, list) else [value]))


def _values(said: Any) -> Iterator[tuple[str, Any]]:
    """Fields by their names, those of a group in the place of the group."""
    for field in fields(said):
        value = getattr(said, field.name)
        yield from _values(value) if is_dataclass(value) else [(field.name, value)]


@cache
def _command() -> Any:
    """The command by itself; help is not for a program that only reads what another was told."""
    alone = typer.Typer(add_completion=False)
    alone.command(add_help_option=False)(batch)
    return typer.main.get_command(alone)
