"""`ingot batch`: a file of prompts in, one record per row out, resumable at any moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from app.cli.batch_options import InputGroup, OutputGroup, RunningGroup, SampleGroup
from app.cli.groups import with_groups
from app.cli.options import ConstraintGroup, ModelGroup, PlanGroup, Reproducible, SamplingGroup

_TEST_ROWS = 3
_TEST_TOKENS = 16


@with_groups
def batch(
    input: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Prompts: JSONL, an OpenAI batch, text with a prompt a line, CSV, Parquet (all but"
            " the last also packed with gzip or zstd), or a folder of texts; - for stdin.",
        ),
    ],
    command: typer.Context,
    sampling: SamplingGroup,
    constraints: ConstraintGroup,
    samples: SampleGroup,
    rows: InputGroup,
    out: OutputGroup,
    running: RunningGroup,
    options: ModelGroup,
    engine: PlanGroup,
    output: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT",
            help="A record for each row in the order of IN: JSONL, CSV or Parquet by its suffix;"
            " - for stdout.",
        ),
    ] = None,
    parts: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="[PART]...")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A folder that `quantize` wrote, a .gguf file, an ONNX folder, or a name that"
            " `ingot models` lists. Required.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before each prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send prompts as they are, without the chat template.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Rows that run together; 16 if memory allows."),
    ] = None,
    reproducible: Reproducible = False,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help=f"Try it: {_TEST_ROWS} rows, {_TEST_TOKENS} tokens each, to stdout; OUT stays.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Answer every row again if model or sampling changed; keep the old answers.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Drop OUT's old answers; compute all rows again.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines on stdout; the figures come last.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no figures on stderr.")
    ] = False,
) -> None:
    """Answer every row of a file.

    Finished rows are kept in OUT.journal.jsonl from the moment they are done: after a crash, Ctrl-C
    or a full disk, the same command resumes where it stopped. Exits 1 if some rows failed or were
    left over at the end of --max-time.

    `ingot batch status OUT` shows how far a job is, also while it runs. `ingot batch merge OUT
    PART...` joins the outputs of --shard. For a file named status or merge, write ./status.
    """
    import sys
    from dataclasses import replace

    from app.batch.input.source import open_source
    from app.batch.interrupt import sigterm_as_ctrl_c
    from app.batch.options import WORDS
    from app.batch.plan import Plan
    from app.batch.report.bar import make_progress
    from app.batch.report.events import Events
    from app.batch.report.file import check_report, report_of, write_report
    from app.batch.report.progress import Both
    from app.batch.runner import run_to_file, run_to_stdout
    from app.batch.schedule.reproducible import alike, computing
    from app.batch.settings import JobSettings
    from app.cli import console
    from app.cli.commands.batch_words import subcommand
    from app.cli.exitcodes import ExitCode
    from app.models.planning import choose
    from app.models.resolve import fingerprint
    from app.prompts import PromptStyle, clean_argument
    from runtimes.errors import RequestError

    if input in WORDS:
        raise typer.Exit(subcommand(command, input, output, parts or [], as_json, replace=fresh))
    if parts:
        raise RequestError(f"give one IN and one OUT; {parts[0]} is one too many")
    if model is None:
        raise RequestError("name the model: ingot batch IN OUT --model MODEL")
    if output is None and not (test or rows.dry_run):
        raise RequestError("name the output too: ingot batch IN OUT --model MODEL (- for stdout)")
    to_stdout = test or output == "-"
    if to_stdout and as_json and not rows.dry_run:
        raise RequestError("--json prints the figures to stdout, where the records go already")
    if to_stdout and not rows.dry_run:
        out.check_stdout()
    if out.report is not None:
        check_report(out.report, None if to_stdout else Path(str(output)))
    params, limit = samples.apply(sampling.params()), rows.limit
    params = replace(params, constraint=constraints.constraint())
    if test:
        params = replace(params, max_tokens=min(params.max_tokens, _TEST_TOKENS))
        limit = min(limit or _TEST_ROWS, _TEST_ROWS)
    engines = running.count()
    prompting = rows.prompting(params, _TEST_TOKENS if test else None)
    style = PromptStyle(clean_argument(system, console.note), raw)
    choice = choose(model, options, engine, "batch", slots, reproducible=reproducible)
    if reproducible:
        choice = alike(choice, engines, ray=running.ray is not None)
    file = choice.file
    with console.doing(f"reading {file.path.name} for its checksum", quiet=quiet):
        checksum = fingerprint(file)
    settings = JobSettings(
        model=file.path.name,
        runtime=file.runtime,
        fingerprint=checksum,
        sampling=params,
        system=style.system,
        raw=style.raw,
        context=options.context,
        kv_type=choice.settings.kv_type,
        computing=computing(choice) if reproducible else None,
    )
    wanted = None if rows.input_format == "auto" else rows.input_format
    with (
        sigterm_as_ctrl_c(),
        console.doing("reading the input", quiet=quiet) as opened,
        open_source(input, format=wanted, prompting=prompting, limit=limit) as source,
    ):
        opened()
        source.shard = out.part()
        plan = Plan(
            source,
            choice,
            settings,
            fixed_slots=slots is not None,
            force=force,
            fresh=fresh,
            strict=rows.strict,
            skip_failed=running.skip_failed,
            limits=running.limits(),
            output=out.output(),
            engines=engines,
            ray=running.ray,
        )
        if rows.dry_run:
            from app.batch.dryrun import dry_run, planned_figures

            looked = dry_run(
                plan, model, planned_figures(model, options, engine, slots), console.note
            )
            console.emit(looked.as_text() if not as_json else json.dumps(looked.as_json()) + "\n")
            raise typer.Exit(ExitCode.ROWS_FAILED if looked.invalid else ExitCode.DONE)
        if rows.strict:
            from app.batch.dryrun import require_fit

            require_fit(plan, console.note)
        shared_terminal = (to_stdout or as_json) and sys.stdout.isatty()
        view = make_progress(quiet=quiet, bar=not shared_terminal)
        events = Events(console.emit) if as_json else None
        progress = Both([view, events]) if events else view
        if to_stdout:
            outcome = run_to_stdout(plan, progress, console.emit_bytes)
        else:
            outcome = run_to_file(plan, Path(str(output)), progress)
        summary = outcome.summary
        if out.report is not None:
            report = report_of(
                summary, settings, outcome.stats, input=input, output=str(output or "-")
            )
            write_report(out.report, report)
        if events:
            events.event("end", summary.as_json())
        if not quiet:
            for line in summary.lines():
                console.note(line)
            if not to_stdout and not summary.slots:
                console.note(f"{output} is up to date: no row needed the model")
        if outcome.ended is not None and not to_stdout:
            console.note("stopped early; the same command resumes from here")
        if outcome.ended == "signal":
            raise typer.Exit(ExitCode.INTERRUPTED)
        if summary.failed or summary.unfinished:
            raise typer.Exit(ExitCode.ROWS_FAILED)
