"""`ingot models`: what is in the library."""

import json
from typing import Annotated

import typer

from app import console


def models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """List the pulled models with their sizes; use the names as MODEL."""
    from app.models.library import library_dir
    from app.models.library import models as all_models
    from quantize.disk import human

    found = all_models()
    if as_json:
        rows = [
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
        shown = {"folder": str(library_dir()), "models": rows}
        console.emit(json.dumps(shown, indent=1, ensure_ascii=False) + "\n")
        return
    if not found:
        console.note(f"no models in {library_dir()}; `ingot pull ORG/NAME` gets one")
        return
    lines = [
        (
            f"{model.repo}:{build.label}",
            human(build.size),
            build.kind if model.is_whole(build) else f"{build.kind}, damaged: pull it again",
        )
        for model in found
        for build in model.builds
    ]
    lines += [(m.repo, "?", "nothing whole: pull it again") for m in found if not m.builds]
    wide = max(len(name) for name, _, _ in lines)
    for name, size, kind in lines:
        console.emit(f"{name:<{wide}}  {size:>7}  {kind}\n")
    total = sum(build.size for model in found for build in model.builds)
    console.note(f"{human(total)} in {library_dir()}")
