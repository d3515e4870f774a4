"""A first pass over the input, before any model is loaded: what is there, what is still to do."""

from __future__ import annotations

import operator
from array import array
from dataclasses import dataclass, field
from itertools import islice

from app.batch.matching import Matcher
from app.batch.settings import row_key
from app.batch.source import Source, Stamp
from app.batch.tasks import RowProblem
from runtimes.errors import RequestError

_FIELDS_SHOWN = 12
_PROBLEMS_KEPT = 5


@dataclass(slots=True)
class Survey:
    """Counts over the input. ``problems`` are the first few of the invalid rows, by line;
    ``shared_ids`` counts rows whose id an earlier row has."""

    stamp: Stamp
    rows: int = 0
    invalid: int = 0
    reusable: int = 0
    shared_ids: int = 0
    problems: list[tuple[int, RowProblem]] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Rows that the model has to answer."""
        return self.rows - self.invalid - self.reusable


def survey(source: Source, matcher: Matcher, digest: bytes) -> Survey:
    """Read every row once. Raises RequestError for an empty input, or a field that no row has."""
    found = Survey(source.stamp())
    fields: dict[str, None] = {}
    lacking = 0
    ids = array("q")
    for row in source.rows():
        found.rows += 1
        ids.append(hash(row.id))
        if len(fields) < _FIELDS_SHOWN:
            fields.update(dict.fromkeys(row.fields))
        if isinstance(row.task, RowProblem):
            found.invalid += 1
            lacking += row.task.code == "missing_field"
            if len(found.problems) < _PROBLEMS_KEPT:
                found.problems.append((row.line, row.task))
        elif matcher.take(row_key(digest, row.task)) is not None:
            found.reusable += 1
    if not found.rows:
        raise RequestError(f"{source.name} has no rows")
    if lacking and found.invalid == found.rows and fields:
        raise RequestError(_no_field(source, list(fields)))
    ordered = sorted(ids)
    found.shared_ids = sum(map(operator.eq, ordered, islice(ordered, 1, None)))
    return found


def _no_field(source: Source, fields: list[str]) -> str:
    shown = ", ".join(repr(name)[1:-1][:40] for name in fields[:_FIELDS_SHOWN])
    if source.field is None:
        return (
            f"no row of {source.name} has a 'prompt' or 'messages'; name the field that holds the "
            f"prompt with --field. The rows have: {shown}"
        )
    return f"no row of {source.name} has the field {source.field!r}; the rows have: {shown}"
