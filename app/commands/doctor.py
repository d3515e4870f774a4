"""`ingot doctor`: what this machine has, and whether the runtimes work on it."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Show the hardware, the libraries, and whether the runtimes pass their self-tests."""
    from app.doctor.report import examine
    from app.doctor.show import show
    from runtimes.errors import RuntimeMissingError

    report = examine()
    if as_json:
        import json

        typer.echo(json.dumps(report.as_json(), indent=1))
    else:
        show(report)
    if not report.usable:
        raise RuntimeMissingError("no runtime works here; " + "; ".join(report.problems))
