"""Every row of the input with what the journal has for it, in the order of the input."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.batch.input.row import Row
from app.batch.input.source import Source
from app.batch.journal.journal import Journal
from app.batch.journal.matching import Matcher
from app.openai.answer import Answer


@dataclass(slots=True)
class Published:
    """What the output holds. ``unfinished`` rows have neither an answer nor an error; ``errors``
    counts the failed ones by their code."""

    answered: int = 0
    failed: int = 0
    unfinished: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def count(self, answer: Answer | None) -> None:
        """Count a row."""
        if answer is None:
            self.unfinished += 1
        elif answer.error is not None:
            self.failed += 1
            self.errors[answer.error.code] += 1
        else:
            self.answered += 1


def answers(
    source: Source, journal: Journal, *, errors: bool = True
) -> Iterator[tuple[Row, Answer | None]]:
    """None for a row without an answer or error, and without ``errors`` for one that failed. Raises
    IngotError when the journal is damaged."""
    matcher = Matcher(journal.entries)
    for row in source.rows():
        if row.problem is not None:
            answer: Answer | None = Answer(error=row.problem)
        else:
            offset = matcher.take(row.key)
            if offset is None and errors:
                offset = matcher.failure(row.key)
            answer = None if offset is None else journal.read(offset, row.key)
        if not errors and answer is not None and answer.error is not None:
            answer = None
        yield row, answer
