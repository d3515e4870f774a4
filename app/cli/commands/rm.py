"""`ingot rm`: take a model out of the library."""

import sys
from typing import Annotated

import typer

from app import console


def rm(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME[:WHAT]", help="A model as `ingot models` lists it."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a pulled model, or one of its files."""
    from app.models import library
    from quantize.disk import human
    from runtimes.errors import RequestError

    found = library.find(name)
    if found is None:
        raise RequestError(f"{name} is not in the library; `ingot models` lists what is")
    model, build = found
    size = build.size if build else sum(kept.size for kept in model.builds)
    what = f"{model.repo}:{build.label}" if build else model.repo
    if not yes:
        if not sys.stdin.isatty():
            raise RequestError(
                f"{what}, {human(size)}, is deleted only with --yes: nobody can be asked"
            )
        if not typer.confirm(f"Delete {what}, {human(size)}?", err=True):
            raise typer.Exit(1)
    library.remove(model, build)
    console.note(f"{what} is deleted; {human(size)} are free")
