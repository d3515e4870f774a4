"""`ingot batch`: a file of prompts in, one record per row out, resumable at any moment."""

from typing import Annotated

import typer

from app.batch.spec import TEST_ROWS, TEST_TOKENS, WORDS, BatchSpec
from app.cli.groups import with_groups
from app.cli.options import (
    ConstraintGroup,
    InputGroup,
    ModelGroup,
    OutputGroup,
    PlanGroup,
    Reproducible,
    RunningGroup,
    SampleGroup,
    SamplingGroup,
)
from runtimes.settings import MOST_SLOTS


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
        typer.Option(min=1, max=MOST_SLOTS, help="Rows that run together; 16 if memory allows."),
    ] = None,
    reproducible: Reproducible = False,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help=f"Try it: {TEST_ROWS} rows, {TEST_TOKENS} tokens each, to stdout; OUT stays.",
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
) -> BatchSpec | None:
    """Answer every row of a file.

    Finished rows are kept in OUT.journal.jsonl from the moment they are done: after a crash, Ctrl-C
    or a full disk, the same command resumes where it stopped. Exits 1 if some rows failed or were
    left over at the end of --max-time.

    `ingot batch status OUT` shows how far a job is, also while it runs. `ingot batch merge OUT
    PART...` joins the outputs of --shard. For a file named status or merge, write ./status.
    """
    spec = BatchSpec(
        input,
        output,
        model,
        system=system,
        raw=raw,
        slots=slots,
        reproducible=reproducible,
        test=test,
        force=force,
        fresh=fresh,
        sampling=sampling,
        constraints=constraints,
        samples=samples,
        rows=rows,
        out=out,
        running=running,
        options=options,
        engine=engine,
    )
    if command.obj is BatchSpec:  # app.cli.batch_arguments wants to know what was said, no more
        return spec
    if input in WORDS:
        from app.cli.commands.batch_words import subcommand

        raise typer.Exit(subcommand(command, input, output, parts or [], as_json, replace=fresh))
    from app.batch.run import run_batch
    from runtimes.errors import RequestError

    if parts:
        raise RequestError(f"give one IN and one OUT; {parts[0]} is one too many")
    raise typer.Exit(run_batch(spec, as_json=as_json, quiet=quiet))
