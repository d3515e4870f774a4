"""`ingot pull`: ready model files from the hub into the library."""

from typing import Annotated

import typer

from app import console


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ORG/NAME[:WHAT]",
            help="A repository on the hub, and which of its models: a type such as Q4_K_M, a file,"
            " or an ONNX folder. @REVISION may follow NAME.",
        ),
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Download a ready GGUF file or ONNX folder; an interrupted download resumes.

    Without WHAT, the only model there is, or a list of them. HF_TOKEN opens private and gated
    repositories.
    """
    from app.models.pulling import parse_request
    from app.models.pulling import pull as bring
    from quantize.progress.console import ConsoleReporter, Reporter

    request = parse_request(name)
    path = bring(request, Reporter() if quiet else ConsoleReporter())
    console.emit(f"{path}\n")
