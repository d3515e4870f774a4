"""`ingot batch`: a file of prompts in, one record per row out, resumable at any moment."""

from typing import Annotated

import typer

from app.batch.spec import WORDS, BatchSpec
from app.cli.groups import with_groups


@with_groups
def batch(
    spec: BatchSpec,
    command: typer.Context,
    parts: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="[PART]...")] = None,
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
    if command.obj is BatchSpec:  # app.cli.batch_arguments wants to know what was said, no more
        return spec
    if spec.input in WORDS:
        from app.cli.commands.batch_words import subcommand

        out, others = spec.output, parts or []
        raise typer.Exit(subcommand(command, spec.input, out, others, as_json, replace=spec.fresh))
    from app.batch.run import run_batch
    from runtimes.errors import RequestError

    if parts:
        raise RequestError(f"give one IN and one OUT; {parts[0]} is one too many")
    raise typer.Exit(run_batch(spec, as_json=as_json, quiet=quiet))
