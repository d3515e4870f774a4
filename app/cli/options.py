"""Options that several commands share, each described once."""

from typing import Annotated

import typer

from app.cli.groups import group
from app.options import ConstraintOptions, ModelOptions, PlanOptions, SamplingOptions
from runtimes.settings import MOST_THREADS

_SAMPLING = "Sampling"

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

SamplingGroup = Annotated[
    SamplingOptions,
    group(
        _SAMPLING,
        max_tokens=typer.Option(help="Maximum number of tokens in an answer."),
        temperature=typer.Option("--temperature", "-t", help="0 always takes the likeliest token."),
        top_k=typer.Option(help="Sample from the K likeliest tokens; 0 for all."),
        top_p=typer.Option(help="Sample from the likeliest tokens up to this total probability."),
        min_p=typer.Option(help="Minimum probability of a token, relative to the likeliest."),
        repetition_penalty=typer.Option(help="Above 1 discourages repetition."),
        presence_penalty=typer.Option(help="Subtracted from tokens seen once."),
        frequency_penalty=typer.Option(help="Subtracted for each time seen."),
        min_tokens=typer.Option(min=0, help="Do not end an answer before this many tokens."),
        seed=typer.Option(help="Makes sampling repeatable."),
        stop=typer.Option(help="End before this text; repeatable."),
    ),
]

ConstraintGroup = Annotated[
    ConstraintOptions,
    group(
        "Constrain the answer (one of these)",
        json_schema=typer.Option(
            metavar="FILE",
            help="JSON that matches this schema: a file, or the schema itself.",
        ),
        regex=typer.Option(help="Text that matches this regular expression."),
        choice=typer.Option(metavar="TEXT", help="One of these texts; repeatable."),
        grammar=typer.Option(
            metavar="FILE", help="Text that matches this grammar (Lark, in llguidance's dialect)."
        ),
    ),
]

ModelGroup = Annotated[
    ModelOptions,
    group(
        "Model",
        recipe=typer.Option(help="The built file of this recipe, such as q8_0 or onnx-int4."),
        file=typer.Option(help="The built file of this name."),
        context=typer.Option(min=8, help="Maximum number of tokens of a prompt and its answer."),
        threads=typer.Option(min=1, max=MOST_THREADS, help="Processor threads."),
    ),
]

PlanGroup = Annotated[
    PlanOptions,
    group(
        "Settings (what is not given here comes from `ingot plan`, if it was run for MODEL)",
        profile=typer.Option(help="What to optimize for."),
        bits=typer.Option(
            help="Only files of this width; 4 by default, if there are any. Widths differ in"
            " accuracy."
        ),
        kv_type=typer.Option(help="llama.cpp: type of the KV cache."),
        batch_tokens=typer.Option(min=1, help="Maximum number of tokens per step."),
        unified_kv=typer.Option(
            "--unified-kv/--split-kv",
            help="llama.cpp: one KV cache for all slots, or one for each.",
        ),
        kv_tokens=typer.Option(
            min=8,
            help="llama.cpp with --unified-kv: tokens that all slots share, if less than slots x"
            " context is enough.",
        ),
        gpu_layers=typer.Option(min=-1, help="llama.cpp: layers on the GPU."),
        device_sampling=typer.Option(
            "--device-sampling/--host-sampling",
            help="llama.cpp: find the likeliest tokens on the GPU, or copy all logits from it.",
        ),
    ),
]

Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible/--no-reproducible",
        help="The same answers to the last bit on this machine, whatever runs beside them, was"
        " interrupted or is cached. Slower.",
        rich_help_panel=_SAMPLING,
    ),
]
