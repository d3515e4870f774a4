"""Every row of the input with what the journal has for it, in the order of the input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.batch.input.source import Row, Source
from app.batch.input.tasks import RowProblem
from app.batch.journal.journal import Journal
from app.batch.journal.matching import Matcher
from app.batch.output.records import failure_of
from app.batch.settings import KEY_BYTES, row_key

NO_KEY = bytes(KEY_BYTES)  # of rows that ask nothing


@dataclass(frozen=True, slots=True)
class Answered:
    """A row with its answer or error; ``answer`` is None while it has neither."""

    row: Row
    key: bytes
    answer: dict[str, Any] | None

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return self.answer is not None and "error" in self.answer


@dataclass(slots=True)
class Published:
    """What the output holds. ``unfinished`` rows have neither an answer nor an error; ``errors``
    counts the failed ones by their code."""

    answered: int = 0
    failed: int = 0
    unfinished: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def count(self, found: Answered) -> None:
        """Count a row."""
        if found.answer is None:
            self.unfinished += 1
        elif found.failed:
            self.failed += 1
            self.errors[found.answer["error"]["code"]] += 1
        else:
            self.answered += 1


def answers(
    source: Source, journal: Journal, digest: bytes, *, errors: bool = True
) -> Iterator[Answered]:
    """Without ``errors``, a row that failed counts as one without an answer. Raises IngotError when
    the journal is damaged."""
    matcher = Matcher(journal.entries)
    for row in source.rows():
        if isinstance(row.task, RowProblem):
            yield Answered(row, NO_KEY, failure_of(row.task) if errors else None)
            continue
        key = row_key(digest, row.task)
        offset = matcher.take(key)
        if offset is None and errors:
            offset = matcher.failure(key)
        found = Answered(row, key, None if offset is None else journal.read(offset, key))
        yield found if errors or not found.failed else Answered(row, key, None)
