"""Repeated ids: each found, with the line of the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.source import IdIndex, Repeats

_IDS = st.lists(st.integers(0, 9) | st.sampled_from(["0", "1", "a", "\ud800", "b\0", "b"]))


def listed(repeats: Repeats) -> list[tuple[int, int, int]]:
    columns = (repeats.rows, repeats.lines, repeats.first_lines)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(_IDS)
def test_like_a_dictionary(ids: list[int | str]) -> None:
    index, first, expected = IdIndex(), dict[object, int](), []
    for row, identity in enumerate(ids):
        index.add(identity, 10 * row)
        before = first.setdefault((type(identity), identity), row)
        if before != row:
            expected.append((row, 10 * row, 10 * before))
    repeats = index.repeats()
    assert listed(repeats) == expected
    assert len(repeats) == len(expected)
    for row, _, line in expected:
        assert repeats.first_line(row) == line
    assert repeats.first_line(len(ids)) is None
    refused = [row for row, *_ in expected if row % 2]
    assert listed(repeats.without(refused)) == [one for one in expected if not one[0] % 2]
