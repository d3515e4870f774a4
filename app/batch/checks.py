"""Refusals before any work: an output that must not be touched, settings that changed."""

from pathlib import Path

from app.batch.input.source import Source
from app.batch.journal.journal import Journal, journal_path
from app.batch.settings import JobSettings, differences
from quantize.outfile import check_outfile
from runtimes.errors import RequestError


def check_out(out: Path, source: Source, *, replace: bool) -> None:
    """Raises RequestError when ``out`` cannot be written, is the input, or is not ours."""
    if out.is_dir():
        raise RequestError(f"{out} is a folder; name a file")
    if not out.parent.is_dir():
        raise RequestError(f"{out}: there is no folder {out.parent}")
    journal, before = journal_path(out), out.with_name(f"{out.name}.journal.jsonl")
    if before != journal and before.exists() and not journal.exists():
        raise RequestError(
            f"{before} is the journal of a link: move it to {journal}, where the journal of the"
            " file itself is"
        )
    if source.reader.listing is not None and out.resolve().is_relative_to(source.path.resolve()):
        raise RequestError(
            f"{out} lies in the input {source.name} and would be a row of the next run; "
            "write it elsewhere"
        )
    if out.exists() and not out.is_file():
        raise RequestError(f"{out} is not a regular file; use - for standard output")
    try:
        check_outfile(out)
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror or error}") from error
    if not out.exists():
        return
    if out.samefile(source.path):
        raise RequestError("the output would overwrite the input; name another file")
    if not (replace or (journal.exists() and journal.stat().st_size)):
        raise RequestError(
            f"{out} exists, and no {journal.name} beside it tells how it was made; "
            "--fresh replaces it"
        )


def check_settings(out: Path, journal: Journal, settings: JobSettings) -> None:
    """Raises RequestError, showing the difference, when ``out`` was begun with other settings."""
    if journal.settings is None or not len(journal.entries):
        return
    changed = differences(journal.settings, settings)
    if changed:
        raise RequestError(
            f"{out} was started with other settings:\n  "
            + "\n  ".join(changed)
            + "\n--force answers every row again and keeps the old answers in the journal; "
            "--fresh drops them; or name another output"
        )


def check_lost_settings(out: Path, journal: Journal, reusable: int) -> None:
    """Raises RequestError when damage hides what the answers of ``out`` were made with, and no row
    of the input shows, by its key, that it was this."""
    if journal.settings_lost and len(journal.entries) and not reusable:
        raise RequestError(
            f"the settings in {journal.path} are damaged, and none of its "
            f"{len(journal.entries):,} records is of a row of this input with the present model "
            "and options. Give the command that began it; or --force, which keeps the old records "
            "and answers every row anew; or --fresh, which drops them; or name another output"
        )
