"""Records are handed out once each, whatever order rows finished in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.batch.journal.journal import Entries, Matcher


def key(number: int) -> bytes:
    return (number * 0x1111_1111_1111_1111).to_bytes(8, "big") + b"rest"


def entries(records: list[tuple[int, bool]], *, keep_failures: bool = False) -> Entries:
    made = Entries()
    made.keep_failures = keep_failures
    for offset, (number, answered) in enumerate(records):
        made.add(key(number), offset, offset, answered)
    return made


@given(
    rows=st.lists(st.integers(0, 5)),
    records=st.lists(st.tuples(st.integers(0, 5), st.booleans())),
)
def test_equal_rows_share_no_record(rows: list[int], records: list[tuple[int, bool]]) -> None:
    matcher = Matcher(entries(records))
    taken = [(row, offset) for row in rows if (offset := matcher.take(key(row))) is not None]
    assert len({offset for _, offset in taken}) == len(taken)
    assert all(records[offset] == (row, True) for row, offset in taken)
    have = Counter(number for number, answered in records if answered)
    assert Counter(row for row, _ in taken) == have & Counter(rows)


def test_the_latest_failure_counts_and_may_stand_as_the_result() -> None:
    records = [(1, False), (2, True), (2, False), (1, False), (3, False), (3, True)]
    matcher = Matcher(entries(records))
    assert [matcher.failure(key(number)) for number in (1, 2, 4)] == [3, 2, None]
    assert matcher.take(key(1)) is None
    matcher = Matcher(entries(records, keep_failures=True))
    assert [matcher.take(key(number)) for number in (1, 2, 3, 4)] == [3, 1, 5, None]
