"""Records are handed out once each, whatever order rows finished in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.batch.journal.journal import Entries, Matcher


def key(number: int) -> bytes:
    return (number * 0x1111_1111_1111_1111).to_bytes(8, "big") + b"rest"


def entries(records: list[tuple[int, bool]]) -> Entries:
    made = Entries()
    for offset, (number, answered) in enumerate(records):
        made.add(key(number), offset, offset, answered)
    return made


@given(
    rows=st.lists(st.integers(0, 5)),
    records=st.lists(st.tuples(st.integers(0, 5), st.booleans())),
)
def test_equal_rows_share_no_record(rows: list[int], records: list[tuple[int, bool]]) -> None:
    matcher = Matcher(entries(records))
    taken = [(row, matcher.take(key(row))) for row in rows]
    offsets = [offset for _, offset in taken if offset is not None]
    assert len(set(offsets)) == len(offsets)
    have = Counter(number for number, answered in records if answered)
    asked = Counter(rows)
    for number in range(6):
        got = sum(row == number and offset is not None for row, offset in taken)
        assert got == min(asked[number], have[number])
    for row, offset in taken:
        if offset is not None:
            assert records[offset] == (row, True)


@given(rows=st.lists(st.integers(0, 3), max_size=12), lost=st.sets(st.integers(0, 11)))
def test_rows_computed_after_a_crash_complete_the_output(rows: list[int], lost: set[int]) -> None:
    """A run that computes what the first pass found missing leaves no row without a record."""
    before = [(row, True) for i, row in enumerate(rows) if i not in lost]
    first = Matcher(entries(before))
    missing = [row for row in rows if first.take(key(row)) is None]
    assert len(missing) == len(rows) - len(before)
    after = Matcher(entries(before + [(row, True) for row in missing]))
    assert all(after.take(key(row)) is not None for row in rows)


def test_the_latest_failure_counts() -> None:
    matcher = Matcher(entries([(1, False), (1, False), (2, True)]))
    assert matcher.failure(key(1)) == 1
    assert matcher.failure(key(2)) is None
    assert matcher.take(key(1)) is None


def test_nothing_recorded() -> None:
    assert Matcher(Entries()).take(key(0)) is None


def test_a_failure_may_stand_as_the_result() -> None:
    kept = entries([(1, False), (2, True), (2, False), (1, False), (3, False), (3, True)])
    kept.keep_failures = True
    matcher = Matcher(kept)
    assert [matcher.take(key(1)), matcher.take(key(2)), matcher.take(key(3))] == [3, 1, 5]
    assert matcher.take(key(4)) is None
