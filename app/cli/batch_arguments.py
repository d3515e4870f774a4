"""The arguments of `ingot batch`: what a job's command line says, and the one that says a job."""

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import typer

from app.batch.spec import BatchSpec, said
from app.cli.commands.batch import batch


@lru_cache(maxsize=64)
def batch_spec(arguments: tuple[str, ...]) -> BatchSpec | None:
    """Parse the arguments after `ingot batch`; None when the command would refuse them."""
    try:
        spec = _command().main(list(arguments), "batch", standalone_mode=False, obj=BatchSpec)
    except typer.TyperException:
        return None
    return spec if isinstance(spec, BatchSpec) else None


def arguments_of(spec: BatchSpec) -> Iterator[str]:
    """The arguments after `ingot batch` of a job with an output; what is as it would be anyway is
    not said."""
    values, usual = dict(said(spec)), dict(said(BatchSpec(spec.input, spec.output)))
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


@cache
def _command() -> Any:
    """The command by itself; help is not for a program that only reads what another was told."""
    alone = typer.Typer(add_completion=False)
    alone.command(add_help_option=False)(batch)
    return typer.main.get_command(alone)
