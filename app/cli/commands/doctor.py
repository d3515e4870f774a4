"""`ingot doctor`: what this machine has, and whether the runtimes and the model files are sound."""

from typing import Annotated

import typer

from app import console
from app.cli.options import TableFlag


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="With --verify: a folder that quantize wrote, or a pulled model (default: all).",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare every file of MODEL with its checksum instead."),
    ] = False,
    as_json: TableFlag = False,
) -> None:
    """Show the hardware, the libraries, and whether the runtimes pass their self-tests."""
    from runtimes.errors import RequestError

    if verify:
        _verify(model, as_json=as_json)
        return
    if model is not None:
        raise RequestError(f"to check the files of {model}, add --verify")
    from app.doctor.report import examine, show
    from runtimes.errors import RuntimeMissingError

    report = examine()
    if as_json:
        console.emit_json(report.as_json(), indent=1)
    else:
        show(report)
    if not report.usable:
        raise RuntimeMissingError("no runtime works here; " + "; ".join(report.problems))


def _verify(model: str | None, *, as_json: bool) -> None:
    """A line for each file as soon as it has been read. Raises ModelError when any is damaged."""
    from app.doctor.verify import verify
    from runtimes.errors import ModelError

    found = []
    for file in verify(model):
        found.append(file)
        if not as_json:
            state = "damaged" if file.problem else "ok"
            console.emit(f"{state:<8}  {file.path}  {file.problem}".rstrip() + "\n")
    damaged = [file for file in found if file.problem]
    if as_json:
        rows = [
            {"path": str(file.path), "bytes": file.bytes, "problem": file.problem or None}
            for file in found
        ]
        console.emit_json({"files": rows, "damaged": len(damaged)}, indent=1)
    if damaged:
        raise ModelError(
            f"{len(damaged)} of {len(found)} files are damaged: `ingot pull` or `quantize` again"
            " brings these back"
        )
