"""Options that several commands share, each described once."""

from typing import Annotated

import typer

from app.options import MODEL_HELP, REPRODUCIBLE_HELP, SamplingOptions

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
PromptArgument = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="Text that is piped in follows it after a blank line."),
]
# Flags of many commands
ObjectFlag = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
TableFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of a table.")
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SystemOption = Annotated[str | None, typer.Option(help="A system message before the prompt.")]

Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible/--no-reproducible",
        help=REPRODUCIBLE_HELP,
        rich_help_panel=SamplingOptions.panel,
    ),
]
