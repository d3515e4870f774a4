"""Options of `ingot batch` that say how rows are run, and what the output is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from app.batch.input.shard import Shard
    from app.batch.plan import Limits, Output
    from app.batch.schedule.engines import Count
    from runtimes.request import SamplingParams

_OUTPUT = "Output"
_RUNNING = "Running"
_SAMPLES = "Samples"


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How many answers a row gets, and what is said about their tokens."""

    n: Annotated[
        int, typer.Option("--n", help="Answers for each row.", rich_help_panel=_SAMPLES)
    ] = 1
    best_of: Annotated[
        int | None,
        typer.Option(
            help="Answers that are made for each row; the --n likeliest are kept.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None
    logprobs: Annotated[
        bool,
        typer.Option(
            "--logprobs", help="The log-probability of each token.", rich_help_panel=_SAMPLES
        ),
    ] = False
    top_logprobs: Annotated[
        int,
        typer.Option(
            metavar="K",
            help="With --logprobs: also the K likeliest tokens at each place.",
            rich_help_panel=_SAMPLES,
        ),
    ] = 0

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The parameters with these. Raises RequestError for a value out of its range."""
        return replace(
            params,
            n=self.n,
            best_of=self.best_of,
            logprobs=self.logprobs or self.top_logprobs > 0,
            top_logprobs=self.top_logprobs,
        )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What OUT is, and what is told about the job."""

    format: Annotated[
        Literal["auto", "jsonl", "openai", "csv", "parquet"],
        typer.Option(
            help="What OUT is: by its suffix, and openai (the lines of OpenAI's batch API) if IN "
            "has such lines.",
            rich_help_panel=_OUTPUT,
        ),
    ] = "auto"
    input_fields: Annotated[
        bool,
        typer.Option(
            "--input-fields/--no-input-fields",
            help="Whether a row of OUT has the fields of its row of IN.",
            rich_help_panel=_OUTPUT,
        ),
    ] = True
    unordered: Annotated[
        bool,
        typer.Option(
            "--unordered",
            help="Append to OUT as rows finish, instead of writing it in order at the end.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Only part I of N of the rows; `ingot batch merge` puts the outputs together.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all figures to FILE as JSON.", rich_help_panel=_OUTPUT
        ),
    ] = None

    def output(self) -> Output:
        """The job's form of output."""
        from app.batch.plan import Output

        format = None if self.format == "auto" else self.format
        return Output(format, fields=self.input_fields, unordered=self.unordered)

    def part(self) -> Shard | None:
        """Which rows are this job's. Raises RequestError."""
        from app.batch.input.shard import Shard

        return None if self.shard is None else Shard.parse(self.shard)

    def check_stdout(self) -> None:
        """Raises RequestError for what only a file can be."""
        from runtimes.errors import RequestError

        if self.unordered:
            raise RequestError("--unordered is for a file that can be gone on with, not for stdout")


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """What a row and the job may take."""

    row_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="A row that takes longer fails.",
            rich_help_panel=_RUNNING,
        ),
    ] = None
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            help="How often a row is asked again after a timeout or an error of the engine.",
            rich_help_panel=_RUNNING,
        ),
    ] = 1
    max_time: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Start no row after this time; what is left is for the next run (exit code 1).",
            rich_help_panel=_RUNNING,
        ),
    ] = None
    engines: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Engines that share the job, each with its GPU or its share of the cores; auto is"
            " one for each GPU or NUMA node (on Ray: GPU or node).",
            show_default="1; auto on Ray",
            rich_help_panel=_RUNNING,
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the engines on a Ray cluster: its address, auto for the one that this machine"
            " is part of, or local to start one here. The model must be at the same path on each"
            " node.",
            rich_help_panel=_RUNNING,
        ),
    ] = None
    skip_failed: Annotated[
        bool,
        typer.Option(
            "--skip-failed",
            help="Rows that failed in an earlier run stay failed, instead of being tried again.",
            rich_help_panel=_RUNNING,
        ),
    ] = False

    def count(self) -> Count:
        """How many engines. Raises RequestError, also where Ray is asked for and not there."""
        from app.batch.schedule.engines import parse_count

        if self.ray is not None:
            from app.batch.schedule.cluster.crew import require_ray

            require_ray()
        return parse_count(self.engines or ("1" if self.ray is None else "auto"))

    def limits(self) -> Limits:
        """The bounds on rows and job."""
        from app.batch.plan import Limits

        return Limits(self.row_timeout, self.retries, self.max_time)
