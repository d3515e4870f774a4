"""Rows of JSON lines: an object each."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.batch.input.lines import rows_by_line
from app.batch.input.row import Raw, Reader
from app.openai.validation import InputError, kind


def _rows(path: Path, name: str) -> Iterator[Raw]:
    return rows_by_line(path, name, _object)


def _object(text: str) -> dict[str, Any]:
    """The object in a line. Raises InputError for anything else."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            "invalid_json", f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InputError("invalid_json", "not usable JSON: nested too deeply") from error
    except ValueError as error:  # a constant that JSON lacks, a number of thousands of digits
        raise InputError("invalid_json", f"not JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise InputError("wrong_type", f"a row must be an object, not {kind(value)}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)

JSONL = Reader(
    "jsonl",
    _rows,
    'write one object a line, such as {"prompt": "What is 2 + 2?"}',
    suffixes=(".jsonl", ".ndjson", ".json"),
    first=b"{",
)
