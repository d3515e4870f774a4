"""`ingot batch`: a file of prompts in, one record per row out, resumable at any moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from app.options import ModelOptions, PlanOptions, SamplingOptions, with_groups

_TEST_ROWS = 3
_TEST_TOKENS = 16


@with_groups
def batch(
    input: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="JSONL with `prompt` or `messages`, or text with a prompt a line; - for stdin.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="A folder that `quantize` wrote, a .gguf file or an ONNX folder."
        ),
    ],
    sampling: SamplingOptions,
    options: ModelOptions,
    engine: PlanOptions,
    output: Annotated[
        str | None,
        typer.Argument(
            metavar="OUT", help="JSONL, a record for each row in the order of IN; - for stdout."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            help="Where the prompt is in a row: a name or a dotted path. A list of strings is a "
            "conversation whose turns are answered one after another."
        ),
    ] = None,
    input_format: Annotated[
        Literal["auto", "jsonl", "text"],
        typer.Option("--input-format", help="What IN is, if its name misleads."),
    ] = "auto",
    system: Annotated[str | None, typer.Option(help="A system message before each prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send prompts as they are, without the chat template.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Rows that run together; 16 where memory permits."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Only the first N rows of IN; OUT then holds just those.", metavar="N"
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help=f"Try it: {_TEST_ROWS} rows, {_TEST_TOKENS} tokens each, to stdout; OUT stays.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on with OUT though model or sampling changed.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget OUT's old answers; compute all rows anew.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The final figures as a JSON object on stdout.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no figures on stderr.")
    ] = False,
) -> None:
    """Answer every row of a file.

    Finished rows are kept in OUT.journal.jsonl from the moment they are done: after a crash, Ctrl-C
    or a full disk, the same command goes on where it stopped. Exits 1 if some rows failed.
    """
    import sys
    from dataclasses import replace

    from app import console
    from app.batch.answering import Plan
    from app.batch.progress import make_progress
    from app.batch.runner import run_to_file, run_to_stdout
    from app.batch.settings import JobSettings
    from app.batch.source import open_source
    from app.exitcodes import ExitCode
    from app.models import fingerprint
    from app.planning import choose
    from app.prompts import PromptStyle, clean_argument
    from runtimes.errors import RequestError

    if output is None and not test:
        raise RequestError("name the output too: ingot batch IN OUT --model MODEL (- for stdout)")
    to_stdout = test or output == "-"
    if to_stdout and as_json:
        raise RequestError("--json prints the figures to stdout, where the records go already")
    params = sampling.params()
    if test:
        params = replace(params, max_tokens=min(params.max_tokens, _TEST_TOKENS))
        limit = min(limit or _TEST_ROWS, _TEST_ROWS)
    style = PromptStyle(clean_argument(system, console.note), raw)
    choice = choose(model, options, engine, "batch", slots)
    file = choice.file
    settings = JobSettings(
        model=file.path.name,
        runtime=file.runtime,
        fingerprint=fingerprint(file),
        sampling=params,
        system=style.system,
        raw=style.raw,
        context=options.context,
        kv_type=choice.settings.kv_type,
    )
    wanted = None if input_format == "auto" else input_format
    with open_source(input, format=wanted, field=field, limit=limit) as source:
        plan = Plan(
            source, choice, settings, fixed_slots=slots is not None, force=force, fresh=fresh
        )
        shared_terminal = to_stdout and sys.stdout.isatty()
        progress = make_progress(quiet=quiet, bar=not shared_terminal)
        if to_stdout:
            outcome = run_to_stdout(plan, progress, console.emit_bytes)
        else:
            outcome = run_to_file(plan, Path(str(output)), progress)
    summary = outcome.summary
    if as_json:
        console.emit(json.dumps(summary.as_json()) + "\n")
    if not quiet:
        for line in summary.lines():
            console.note(line)
        if not to_stdout and not summary.slots:
            console.note(f"{output} is up to date: no row needed the model")
    if outcome.interrupted:
        if not to_stdout:
            console.note("stopped early; the same command goes on from here")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if summary.failed or summary.unfinished:
        raise typer.Exit(ExitCode.ROWS_FAILED)
