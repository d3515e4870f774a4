"""Options that several commands share, each described once."""

from typing import Annotated

import typer

from app.batch.spec import InputOptions, OutputOptions, RunningOptions, SampleOptions
from app.cli.groups import Group
from app.options import ConstraintOptions, ModelOptions, PlanOptions, SamplingOptions

MODEL_HELP = (
    "A folder that `quantize` wrote, a .gguf file, an ONNX folder, or a name that `ingot models`"
    " lists."
)
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

SamplingGroup = Annotated[SamplingOptions, Group("Sampling")]
ConstraintGroup = Annotated[ConstraintOptions, Group("Constrain the answer (one of these)")]
ModelGroup = Annotated[ModelOptions, Group("Model")]
PlanGroup = Annotated[
    PlanOptions,
    Group("Settings (what is not given here comes from `ingot plan`, if it was run for MODEL)"),
]
Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible/--no-reproducible",
        help="The same answers to the last bit on this machine, whatever runs beside them, was"
        " interrupted or is cached. Slower.",
        rich_help_panel="Sampling",
    ),
]

# Of `ingot batch` alone
SampleGroup = Annotated[SampleOptions, Group("Samples")]
InputGroup = Annotated[InputOptions, Group("Input")]
OutputGroup = Annotated[OutputOptions, Group("Output")]
RunningGroup = Annotated[RunningOptions, Group("Running")]
