"""First pass over the input, before any model is loaded: counts rows, finds invalid ones, and notes
where the pending ones are."""

from collections.abc import Set
from dataclasses import dataclass, field
from itertools import islice

from app.batch.input.lines import Places
from app.batch.input.source import NO_REPEATS, IdIndex, Repeats, Source
from app.batch.journal.journal import Entries, Matcher
from app.openai.validation import Problem
from runtimes.errors import RequestError
from runtimes.request import Priority

_FIELDS_SHOWN = 12
_PROBLEMS_KEPT = 5
_INVALID_KEPT = 1000
_SHOWN = 3


@dataclass(slots=True)
class RefusedRows:
    """Rows that cannot be asked: how many, and the first with their places."""

    count: int = 0
    first: list[tuple[str, Problem]] = field(default_factory=list)

    def add(self, where: str, problem: Problem) -> None:
        """Count a row."""
        self.count += 1
        if len(self.first) < _PROBLEMS_KEPT:
            self.first.append((where, problem))

    def lines(self, name: str, what: str) -> list[str]:
        """Messages on rows of the input called ``name``, which ``what`` says."""
        lines = [f"{name}, {where}: {problem.message}" for where, problem in self.first]
        more = self.count - len(self.first)
        return [*lines, f"and {more:,} more {what}"] if more else lines


@dataclass(slots=True)
class InputScan:
    """Result of a pass over the input."""

    input_rows: int = 0  # those of other shards too
    rows: int = 0
    requests: int = 0  # lines of an OpenAI batch, those of other shards too
    reusable: int = 0  # answered already
    skipped: int = 0  # of the reusable ones: they stay failed
    left_out: int = 0  # without an answer, but not to be asked now
    characters: int = 0  # of the pending rows' prompts
    places: dict[Priority, Places] = field(default_factory=dict)  # of the pending rows
    refused: RefusedRows = field(default_factory=RefusedRows)  # rows that are not valid
    repeats: Repeats = NO_REPEATS  # valid, though an earlier row has their id
    invalid_rows: list[int] = field(default_factory=list)  # indexes of the first thousand

    @property
    def invalid(self) -> int:
        """Rows that ask nothing."""
        return self.refused.count

    @property
    def pending(self) -> int:
        """Rows that the model has to answer."""
        return self.rows - self.invalid - self.reusable - self.left_out

    @property
    def cached(self) -> int:
        """Rows whose answer is there already."""
        return self.reusable - self.skipped

    @property
    def failed(self) -> int:
        """Rows that have an error already, or ask nothing."""
        return self.invalid + self.skipped

    def narrow(self, only: Set[int]) -> None:
        """Leave out the pending rows whose indexes are not among these."""
        before, places = self.pending, self.places
        self.places = {priority: place.among(only) for priority, place in places.items()}
        self.left_out += before - sum(len(place.indexes) for place in self.places.values())
        self.characters = self.characters * self.pending // max(before, 1)

    def notes(self, name: str) -> list[str]:
        """Return messages on invalid rows of the input called ``name``, the first by line."""
        lines = self.refused.lines(name, "rows that are not valid")
        if count := len(self.repeats):
            pairs = zip(self.repeats.lines, self.repeats.first_lines, strict=True)
            shown = [f"line {line} that of line {first}" for line, first in islice(pairs, _SHOWN)]
            told = ", ".join(shown + ["..."] * (count > _SHOWN))
            lines.append(
                f"{count:,} rows repeat an earlier row's id ({told}); `index` tells them apart"
            )
        return lines


def scan(source: Source, entries: Entries, *, strict: bool = False) -> InputScan:
    """Read every row, and tell ``source`` which repeat an id. ``entries`` are the journal's.

    Raises RequestError for an empty input or a field that no row has; if ``strict``, also for any
    row that is not valid or repeats an id.
    """
    ids = IdIndex()
    found = _read(source, entries, ids)
    source.repeats = found.repeats = ids.repeats()
    if found.requests and len(source.repeats):
        # Rare: rows that counted as valid are not, and other rows get the answers that they took.
        found = _read(source, entries, None)
    if strict and (notes := found.notes(source.name)):
        raise RequestError("\n".join([*notes, "--strict: nothing was done; fix these rows"]))
    return found


def _read(source: Source, entries: Entries, ids: IdIndex | None) -> InputScan:
    """One reading; ``ids`` are collected in the first."""
    matcher = Matcher(entries)
    found, source.seen = InputScan(), source.stamp()
    fields: dict[str, None] = {}
    lacking = 0
    repeated: list[int] = []
    for row in source.all_rows():
        found.input_rows += 1
        found.requests += row.endpoint is not None
        if ids is not None:
            ids.add(row.id, row.line)
        if not source.takes(row):
            continue
        found.rows += 1
        if len(fields) < _FIELDS_SHOWN:
            fields.update(dict.fromkeys(row.fields))
        if row.problem is not None:
            found.refused.add(row.where, row.problem)
            if len(found.invalid_rows) < _INVALID_KEPT:
                found.invalid_rows.append(row.index)
            lacking += row.problem.code == "missing_field"
            if row.problem.code == "duplicate_id":
                repeated.append(row.index)
            continue
        if (offset := matcher.take(row.key)) is not None:
            found.reusable += 1
            found.skipped += offset == matcher.failure(row.key)
        else:
            found.characters += row.task.characters
            places = found.places.setdefault(row.task.priority, Places())
            places.add(row.index, row.line, row.offset)
    if not found.input_rows:
        raise RequestError(f"{source.name} has no rows: {source.reader.hint}")
    if lacking and found.invalid == found.rows and fields:
        raise RequestError(_no_field(source, list(fields), found.refused.first))
    found.repeats = source.repeats.without(repeated)
    return found


def _no_field(source: Source, fields: list[str], problems: list[tuple[str, Problem]]) -> str:
    shown = ", ".join(repr(name)[1:-1][:40] for name in fields[:_FIELDS_SHOWN])
    field = source.prompting.rows.field
    first = next((one for _, one in problems if one.code == "missing_field"), problems[0][1])
    said = first.message
    if source.prompting.template is not None:
        return f"no row of {source.name} fits the template; {said}"
    if field is not None and repr(field) in said:
        return f"no row of {source.name} has the field {field!r}; the rows have: {shown}"
    return (
        f"no row of {source.name} can be asked: {said}; --field names the one with the prompt. "
        f"The rows have: {shown}"
    )
