"""`ingot batch status OUT` and `ingot batch merge OUT PART...`.

The two words are taken before any file of that name is looked for, so that what a command does
never depends on which files there are.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from app import console
from app.exitcodes import ExitCode
from runtimes.errors import RequestError

_OPTIONS = {"status": {"as_json"}, "merge": {"as_json", "fresh"}}
_USAGE = {"status": "ingot batch status OUT", "merge": "ingot batch merge OUT PART..."}
_ARGUMENTS = {"input", "output", "parts"}


def subcommand(
    context: typer.Context,
    word: str,
    out: str | None,
    parts: Sequence[str],
    as_json: bool,
    *,
    replace: bool,
) -> ExitCode:
    """Do what ``word`` says; the result is the exit code. Raises RequestError for an option that
    has no meaning here, most likely because ``word`` was meant as a file."""
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in _ARGUMENTS | _OPTIONS[word]:
            raise RequestError(
                f"`{_USAGE[word]}` has no such option; for a file named {word}, write ./{word}"
            )
    if out is None or (word == "merge") != bool(parts):
        raise RequestError(f"usage: {_USAGE[word]} (for a file named {word}, write ./{word})")
    return _status(out, as_json) if word == "status" else _merge(out, parts, as_json, replace)


def _status(out: str, as_json: bool) -> ExitCode:
    from app.batch.report.status import status_of

    status = status_of(Path(out))
    if as_json:
        console.emit(json.dumps(status.as_json()) + "\n")
    else:
        console.emit("".join(f"{line}\n" for line in status.lines()))
    return ExitCode.DONE


def _merge(out: str, parts: Sequence[str], as_json: bool, replace: bool) -> ExitCode:
    from app.batch.output.merge import merge

    merged = merge(Path(out), [Path(part) for part in parts], replace=replace)
    if as_json:
        figures = {"rows": merged.rows, "failed": merged.failed, "parts": merged.parts}
        console.emit(json.dumps(figures) + "\n")
    else:
        console.note(
            f"{out}: {merged.rows:,} rows of {merged.parts} parts, {merged.failed:,} failed"
        )
    return ExitCode.ROWS_FAILED if merged.failed else ExitCode.DONE
