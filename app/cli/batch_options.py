"""Options of `ingot batch` alone."""

from __future__ import annotations

from typing import Annotated

import typer

from app.batch.options import InputOptions, OutputOptions, RunningOptions, SampleOptions
from app.cli.groups import group

SampleGroup = Annotated[
    SampleOptions,
    group(
        "Samples",
        n=typer.Option("--n", help="Answers for each row."),
        best_of=typer.Option(
            help="Answers that are made for each row; the --n likeliest are kept."
        ),
        logprobs=typer.Option("--logprobs", help="The log-probability of each token."),
        top_logprobs=typer.Option(
            metavar="K", help="With --logprobs: also the K likeliest tokens at each place."
        ),
    ),
]

InputGroup = Annotated[
    InputOptions,
    group(
        "Input",
        field=typer.Option(
            help="Where the prompt is in a row: a name or a dotted path. A list of strings is a "
            "conversation whose turns are answered one after another.",
        ),
        template=typer.Option(
            metavar="FILE.j2",
            help="A Jinja2 template that makes the prompt from the row's fields.",
        ),
        input_format=typer.Option("--input-format", help="What IN is, if its name misleads."),
        priority_field=typer.Option(
            help="Where a row's priority is: critical, high, normal or low, or 0 to 3."
        ),
        json_schema_field=typer.Option(
            help="Where a row's own JSON schema is, which its answer must follow."
        ),
        limit=typer.Option(
            min=1, help="Only the first N rows of IN; OUT then holds just those.", metavar="N"
        ),
        strict=typer.Option(
            "--strict",
            help="Rows that are not valid end the job before it begins, instead of becoming errors "
            "in OUT.",
        ),
        dry_run=typer.Option(
            "--dry-run",
            help="Only look: rows, tokens, memory and time; loads no weights, writes nothing.",
        ),
    ),
]

OutputGroup = Annotated[
    OutputOptions,
    group(
        "Output",
        format=typer.Option(
            help="What OUT is: by its suffix, and openai (the lines of OpenAI's batch API) if IN "
            "has such lines.",
        ),
        input_fields=typer.Option(
            "--input-fields/--no-input-fields",
            help="Whether a row of OUT has the fields of its row of IN.",
        ),
        unordered=typer.Option(
            "--unordered",
            help="Append to OUT as rows finish, instead of writing it in order at the end.",
        ),
        shard=typer.Option(
            metavar="I/N",
            help="Only part I of N of the rows; `ingot batch merge` puts the outputs together.",
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
            help="Start no row after this time; what is left is for the next run (exit code 1).",
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
