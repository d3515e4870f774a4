"""Options of `ingot batch` alone."""

from typing import Annotated

import typer

from app.batch.spec import InputOptions, OutputOptions, RunningOptions, SampleOptions
from app.cli.groups import group

SampleGroup = Annotated[
    SampleOptions,
    group(
        "Samples",
        n=typer.Option("--n", help="Answers for each row."),
        best_of=typer.Option(help="Answers to generate for each row; the --n likeliest are kept."),
        logprobs=typer.Option("--logprobs", help="The log-probability of each token."),
        top_logprobs=typer.Option(
            metavar="K", help="With --logprobs: also the K likeliest tokens at each position."
        ),
    ),
]

InputGroup = Annotated[
    InputOptions,
    group(
        "Input",
        field=typer.Option(
            help="Field with the prompt: a name or a dotted path. A list of strings is a "
            "conversation whose turns are answered one after another.",
        ),
        template=typer.Option(
            metavar="FILE.j2",
            help="A Jinja2 template that makes the prompt from the row's fields.",
        ),
        input_format=typer.Option("--input-format", help="Format of IN; auto detects it."),
        priority_field=typer.Option(
            help="Field with a row's priority: critical, high, normal or low, or 0 to 3."
        ),
        json_schema_field=typer.Option(
            help="Field with a row's own JSON schema, which its answer must match."
        ),
        limit=typer.Option(
            min=1, help="Only the first N rows of IN; OUT then holds just those.", metavar="N"
        ),
        strict=typer.Option(
            "--strict",
            help="Refuse the job if a row is not valid, instead of writing an error to OUT.",
        ),
        dry_run=typer.Option(
            "--dry-run",
            help="Only show rows, tokens, memory and time; load no weights, write nothing.",
        ),
    ),
]

OutputGroup = Annotated[
    OutputOptions,
    group(
        "Output",
        format=typer.Option(
            help="Format of OUT; auto: by its suffix, or openai if IN has OpenAI batch requests.",
        ),
        input_fields=typer.Option(
            "--input-fields/--no-input-fields",
            help="Copy the fields of each row of IN to its row of OUT.",
        ),
        unordered=typer.Option(
            "--unordered",
            help="Append to OUT as rows finish, instead of writing it in order at the end.",
        ),
        shard=typer.Option(
            metavar="I/N",
            help="Only part I of N of the rows; `ingot batch merge` joins the outputs.",
        ),
        report=typer.Option(metavar="FILE", help="Write all figures to FILE as JSON."),
    ),
]

RunningGroup = Annotated[
    RunningOptions,
    group(
        "Running",
        row_timeout=typer.Option(
            min=0.001, metavar="SECONDS", help="A row that takes longer fails."
        ),
        retries=typer.Option(
            min=0, help="How often a row is asked again after a timeout or an error of the engine."
        ),
        max_time=typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Start no row after this time; the next run does the rest (exit code 1).",
        ),
        engines=typer.Option(
            metavar="N|auto",
            help="Engines that share the job, each with its GPU or its share of the cores; auto is"
            " one for each GPU or NUMA node (on Ray: GPU or node).",
            show_default="1; auto on Ray",
        ),
        ray=typer.Option(
            metavar="ADDRESS",
            help="Run the engines on a Ray cluster: its address, auto for the one that this machine"
            " is part of, or local to start one here. The model must be at the same path on each"
            " node.",
        ),
        skip_failed=typer.Option(
            "--skip-failed",
            help="Rows that failed in an earlier run stay failed, instead of being tried again.",
        ),
    ),
]
