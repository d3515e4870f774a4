"""`ingot batch`: a file of prompts in, one record per row out, resumable at any moment. `ingot
embed`: vectors of texts."""

import json
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import typer

from app.batch.spec import WORDS, BatchSpec, said
from app.cli.options import MODEL, with_groups
from app.console import emit, note
from app.exitcodes import ExitCode
from app.options import ModelOptions, argument, option
from runtimes.errors import RequestError

_OPTIONS = {"status": {"as_json"}, "merge": {"as_json", "fresh"}}
_USAGE = {"status": "ingot batch status OUT", "merge": "ingot batch merge OUT PART..."}
_ARGUMENTS = {"input", "output", "parts"}
_QUIET = option(False, "No progress and no figures on stderr.", "--quiet", "-q")


@with_groups
def batch(
    spec: BatchSpec,
    command: typer.Context,
    parts: list[str] | None = argument("", None, hidden=True, metavar="[PART]..."),
    as_json: bool = option(
        False, "Events as JSON lines on stdout; the figures come last.", "--json"
    ),
    quiet: bool = _QUIET,
) -> BatchSpec | None:
    """Answer every row of a file.

    Finished rows are kept in OUT.journal.jsonl from the moment they are done: after a crash, Ctrl-C
    or a full disk, the same command resumes where it stopped. Exits 1 if some rows failed or were
    left over at the end of --max-time.

    `ingot batch status OUT` shows how far a job is, also while it runs. `ingot batch merge OUT
    PART...` joins the outputs of --shard. For a file named status or merge, write ./status.
    """
    if command.obj is BatchSpec:  # batch_spec wants to know what was said, no more
        return spec
    if spec.input in WORDS:
        raise typer.Exit(_subcommand(command, spec, parts or [], as_json))
    if parts:
        raise RequestError(f"give one IN and one OUT; {parts[0]} is one too many")
    if spec.cascade.first is not None:
        from app.batch.cascade import run_cascade as run
    else:
        from app.batch.run import run_batch as run
    raise typer.Exit(run(spec, as_json=as_json, quiet=quiet))


def _subcommand(
    context: typer.Context, spec: BatchSpec, parts: Sequence[str], as_json: bool
) -> ExitCode:
    """Do what the word in the place of IN says. It is taken before any file of that name is looked
    for, so that what a command does never depends on which files there are; an option that has no
    meaning here is refused: the word was most likely meant as a file."""
    word, out = spec.input, spec.output
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in _ARGUMENTS | _OPTIONS[word]:
            raise RequestError(
                f"`{_USAGE[word]}` has no such option; for a file named {word}, write ./{word}"
            )
    if out is None or (word == "merge") != bool(parts):
        raise RequestError(f"usage: {_USAGE[word]} (for a file named {word}, write ./{word})")
    return _status(out, as_json) if word == "status" else _merge(out, parts, as_json, spec.fresh)


def _status(out: str, as_json: bool) -> ExitCode:
    from app.batch.report.figures import status_of

    status = status_of(Path(out))
    if as_json:
        emit(json.dumps(status.as_json()) + "\n")
    else:
        emit("".join(f"{line}\n" for line in status.lines()))
    return ExitCode.DONE


def _merge(out: str, parts: Sequence[str], as_json: bool, replace: bool) -> ExitCode:
    from app.batch.output.merge import merge

    merged = merge(Path(out), [Path(part) for part in parts], replace=replace)
    if as_json:
        emit(json.dumps(merged) + "\n")
    else:
        note("{}: {rows:,} rows of {parts} parts, {failed:,} failed".format(out, **merged))
    return ExitCode.ROWS_FAILED if merged["failed"] else ExitCode.DONE


@with_groups
def embed(
    model: str = MODEL,
    *,
    options: ModelOptions,
    texts: list[str] | None = argument(
        "Texts. Without any, standard input has one a line.", None, metavar="TEXT"
    ),
    source: str | None = option(
        None,
        "A file or a folder of texts, as `ingot batch` reads it; - for standard input.",
        "--input",
        "-i",
        metavar="IN",
    ),
    field: str | None = option(None, "Field with the text: a name or a dotted path."),
    dimensions: int | None = option(
        None, "The first N numbers, of length 1 again.", min=1, metavar="N"
    ),
    output: Path | None = option(None, "Instead of stdout.", "--output", "-o", metavar="FILE"),
    form: Literal["jsonl", "npy"] | None = option(
        None,
        "A JSON object for each text, or NumPy's array of float32.",
        "--format",
        show_default="npy if FILE ends in .npy, else jsonl",
    ),
    quiet: bool = _QUIET,
) -> None:
    """Embed texts: vectors of length 1, near each other for texts that are alike.

    GGUF files give embeddings; ONNX graphs do not. Exits 1 if some texts failed.
    """
    from app.batch.embed import EmbedJob, run_embed

    if form is None:
        form = "npy" if output is not None and output.suffix.lower() == ".npy" else "jsonl"
    job = EmbedJob(model, tuple(texts or ()), source, field, dimensions, output, form, options)
    raise typer.Exit(run_embed(job, quiet=quiet))


# What a job's command line says, and the one that says a job


@lru_cache(maxsize=64)
def batch_spec(arguments: tuple[str, ...]) -> BatchSpec | None:
    """Parse the arguments after `ingot batch`; None when the command would refuse them."""
    try:
        spec = _command().main(list(arguments), "batch", standalone_mode=False, obj=BatchSpec)
    except typer.TyperException:
        return None
    return spec if isinstance(spec, BatchSpec) else None


def arguments_of(spec: BatchSpec) -> Iterator[str]:
    """The arguments after `ingot batch` of a job with an output; what is as it would be anyway is
    not said."""
    values, usual = dict(said(spec)), dict(said(BatchSpec(spec.input, spec.output)))
    yield from (spec.input, str(spec.output))
    for param in _command().params:
        value = values.get(param.name)
        if value is None or value == usual[param.name]:
            continue
        if isinstance(value, bool):
            yield (param.opts if value else param.secondary_opts)[0]
        else:
            name = max(param.opts, key=len)
            yield from (f"{name}={v}" for v in (value if isinstance(value, list) else [value]))


@cache
def _command() -> Any:
    """The command by itself; help is not for a program that only reads what another was told."""
    alone = typer.Typer(add_completion=False)
    alone.command(add_help_option=False)(batch)
    return typer.main.get_command(alone)
