"""`ingot models`, `pull` and `rm`: what is in the library, what comes into it, what goes."""

import sys
from typing import Any

import typer

from app.cli.options import AS_TABLE, YES, with_groups
from app.console import emit, emit_json, note
from app.options import argument, option


@with_groups
def models(as_json: bool = AS_TABLE) -> None:
    """List the pulled models with their sizes; use the names as MODEL."""
    from app.models.library import library_dir
    from app.models.library import models as all_models
    from quantize.disk import human

    found = all_models()
    rows: list[dict[str, Any]] = [
        {
            "name": f"{model.repo}:{build.label}",
            "format": build.kind,
            "bytes": build.size,
            "path": str(model.path(build)),
            "commit": build.commit,
            "whole": model.is_whole(build),
        }
        for model in found
        for build in model.builds
    ]
    if as_json:
        emit_json({"folder": str(library_dir()), "models": rows}, indent=1)
        return
    if not found:
        note(f"no models in {library_dir()}; `ingot pull ORG/NAME` gets one")
        return
    lines = [
        (r["name"], human(r["bytes"]), r["format"] + ", damaged: pull it again" * (not r["whole"]))
        for r in rows
    ]
    lines += [(m.repo, "?", "nothing whole: pull it again") for m in found if not m.builds]
    wide = max(len(name) for name, _, _ in lines)
    for name, size, kind in lines:
        emit(f"{name:<{wide}}  {size:>7}  {kind}\n")
    note(f"{human(sum(row['bytes'] for row in rows))} in {library_dir()}")


@with_groups
def pull(
    name: str = argument(
        "A repository on the hub, and which of its models: a type such as Q4_K_M, a file, or an"
        " ONNX folder. @REVISION may follow NAME.",
        metavar="ORG/NAME[:WHAT]",
    ),
    quiet: bool = option(False, "No progress.", "--quiet", "-q"),
) -> None:
    """Download a ready GGUF file or ONNX folder; an interrupted download resumes.

    Without WHAT, the only model there is, or a list of them. HF_TOKEN opens private and gated
    repositories.
    """
    from app.models.pulling import parse_request
    from app.models.pulling import pull as bring
    from quantize.progress import ConsoleReporter, Reporter

    request = parse_request(name)
    path = bring(request, Reporter() if quiet else ConsoleReporter())
    emit(f"{path}\n")


@with_groups
def rm(
    name: str = argument("A model as `ingot models` lists it.", metavar="NAME[:WHAT]"),
    yes: bool = YES,
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
    note(f"{what} is deleted; {human(size)} are free")
