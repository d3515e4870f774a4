"""Repeated ids: each found, with the line of the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.source import IdIndex, Repeats

_IDS = st.lists(st.integers(0, 9) | st.sampled_from(["0", "1", "a", "\ud800", "b\0", "b"]))


def index(ids: list[int | str]) -> IdIndex:
    found = IdIndex()
    for row, identity in enumerate(ids):
        found.add(identity, 10 * row)
    return found


def expected(ids: list[int | str]) -> list[tuple[int, int, int]]:
    first: dict[object, int] = {}
    found = []
    for row, identity in enumerate(ids):
        before = first.setdefault((type(identity), identity), row)
        if before != row:
            found.append((row, 10 * row, 10 * before))
    return found


def listed(repeats: Repeats) -> list[tuple[int, int, int]]:
    columns = (repeats.rows, repeats.lines, repeats.first_lines)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(_IDS)
def test_like_a_dictionary(ids: list[int | str]) -> None:
    repeats = index(ids).repeats()
    assert listed(repeats) == expected(ids)
    for row, _, first in expected(ids):
        assert repeats.first_line(row) == first
    assert repeats.first_line(len(ids)) is None
    refused = [row for row in repeats.rows if row % 2]
    assert listed(repeats.without(refused)) == [r for r in expected(ids) if not r[0] % 2]


def test_many() -> None:
    ids: list[int | str] = [f"row {i}" for i in range(120_000)]
    assert len(index(ids).repeats()) == 0
    ids[100_001] = ids[7]
    assert listed(index(ids).repeats()) == [(100_001, 1_000_010, 70)]
