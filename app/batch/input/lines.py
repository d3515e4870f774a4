"""Lines of a file, each with its number."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from app.batch.input.row import Raw
from app.batch.input.streams import InputStream
from app.openai.task import InputError, Problem

UTF8_BOM = b"\xef\xbb\xbf"
# A line is held in memory whole; one that is longer than any context must not exhaust it.
MAX_LINE = 64 * 2**20
_BLANK = b" \t\r\n\f\v"


def rows_by_line(
    path: Path, name: str, parse: Callable[[bytes], Mapping[str, Any]]
) -> Iterator[Raw]:
    """A row for each line that is not blank, its fields by ``parse``."""
    with InputStream(path, name) as stream:
        for number, raw in numbered_lines(stream):
            if isinstance(raw, Problem):
                yield Raw(number, problem=raw)
            elif raw.strip(_BLANK):
                try:
                    yield Raw(number, parse(raw.rstrip(b"\r\n")))
                except InputError as error:
                    yield Raw(number, problem=error.problem)


def numbered_lines(stream: InputStream) -> Iterator[tuple[int, bytes | Problem]]:
    """Lines from 1 with their ends; a problem for one that is too long, or that is damaged."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE + 1)
            if not raw:
                return
            if number == 1:
                raw = raw.removeprefix(UTF8_BOM)
            if len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(MAX_LINE)
                yield number, too_long("line")
            else:
                yield number, raw
        except InputError as error:
            yield number, error.problem
            return


def too_long(what: str) -> Problem:
    """The problem of a line or file above ``MAX_LINE``."""
    return Problem("line_too_long", f"the {what} is longer than {MAX_LINE / 2**20:.0f} MiB")


def decode(raw: bytes, what: str = "line") -> str:
    """Text of a whole line or file. Raises InputError."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "invalid_utf8", f"byte {error.start + 1} of the {what} is not valid UTF-8"
        ) from error
