"""Lines of a file, each with its number, and what one line of JSONL means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from app.batch.input.streams import InputStream
from app.batch.input.tasks import BadRowError, RowProblem, kind

UTF8_BOM = b"\xef\xbb\xbf"
# A line is held in memory whole; one that is longer than any context must not exhaust it.
MAX_LINE = 64 * 2**20


def numbered_lines(stream: InputStream) -> Iterator[tuple[int, bytes | RowProblem]]:
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
        except BadRowError as error:
            yield number, error.problem
            return


def too_long(what: str) -> RowProblem:
    """The problem of a line or file above ``MAX_LINE``."""
    return RowProblem("line_too_long", f"the {what} is longer than {MAX_LINE / 2**20:.0f} MiB")


def decode(raw: bytes, what: str = "line") -> str:
    """Text of a whole line or file. Raises BadRowError."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRowError(
            "invalid_utf8", f"byte {error.start + 1} of the {what} is not valid UTF-8"
        ) from error


def json_object(text: str) -> dict[str, Any]:
    """The object in a line of JSONL. Raises BadRowError for anything else, and for numbers that
    JSON cannot hold."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadRowError(
            "invalid_json", f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise BadRowError("invalid_json", "not usable JSON: nested too deeply") from error
    except ValueError as error:  # a constant that JSON lacks, a number of thousands of digits
        raise BadRowError("invalid_json", f"not JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise BadRowError("wrong_type", f"a row must be an object, not {kind(value)}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
