"""Rows are rearranged, none is lost, and what begins alike runs together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.adapters import AdapterFile
from app.batch.input.source import Row
from app.batch.schedule.pending_rows import RowDispatcher, arranged, rearranged
from app.openai.task import Task
from runtimes.request import Priority


def rows_of(texts: list[str], **task: object) -> list[Row]:
    """Rows with these system messages; fields of their tasks, a list each."""
    made = []
    for index, text in enumerate(texts):
        plain = Task(({"role": "system", "content": text},), ("go",))
        own = {name: values[index] for name, values in task.items()}  # type: ignore[index]
        made.append(Row(index, index + 1, index, replace(plain, **own)))
    return made


def indexes(rows: list[Row]) -> list[int]:
    return [item.index for item in rows]


def test_the_most_urgent_then_those_of_an_adapter_then_long_rows() -> None:
    poet, bard = (AdapterFile(name, Path(name), name) for name in ("poet", "bard"))
    adapters = [None, poet, bard, poet, None, bard]
    rows = rows_of(["a", "b", "ccc", "b", "dd", "e"], adapter=adapters)
    assert indexes(arranged(rows)) == [2, 5, 4, 0, 1, 3]  # the longest row's first
    urgent = replace(rows[3], task=replace(rows[3].task, priority=Priority.HIGH))
    assert indexes(arranged([*rows[:3], urgent]))[0] == 3
    assert indexes(arranged(rows_of(["a", "b" * 300, "c" * 20]))) == [1, 2, 0]
    priorities = [Priority.LOW, Priority.CRITICAL, Priority.NORMAL]
    assert indexes(arranged(rows_of(["a" * 99, "b", "c"], priority=priorities))) == [1, 2, 0]


def test_what_begins_alike_follows_each_other_and_goes_to_one_engine() -> None:
    rows = rows_of([kind * 100 + str(i) for i in range(6) for kind in "abcd"])
    order = [index % 4 for index in indexes(arranged(rows))]
    assert order == [kind for kind in order[::6] for _ in range(6)]
    assert sorted(order[::6]) == [0, 1, 2, 3]
    dispatcher, taken = RowDispatcher(iter(arranged(rows)), users=2), [list[Row](), list[Row]()]
    while not dispatcher.exhausted:
        for user in (0, 1):
            item = dispatcher.take(user, most=8)
            if item is not None:
                taken[user].append(item)
    assert sorted(indexes(taken[0] + taken[1])) == list(range(24))
    alike = [{row.index % 4 for row in some} for some in taken]
    assert sorted(map(len, alike)) == [2, 2]
    assert not set.intersection(*alike)


@given(
    st.lists(st.text(alphabet="ab", max_size=8), max_size=30),
    st.integers(1, 7),
    st.integers(1, 40),
)
def test_every_row_once_and_close_to_its_place(texts: list[str], rows: int, size: int) -> None:
    order = indexes(list(rearranged(rows_of(texts), rows, size)))
    assert sorted(order) == list(range(len(texts)))
    for place, index in enumerate(order):
        assert abs(place - index) < rows


def test_one_that_has_nothing_left_takes_from_the_others() -> None:
    dispatcher = RowDispatcher(iter(rows_of(["the same " * 20] * 10)), users=3)
    assert dispatcher.take(0, most=16) is not None  # it has them all now
    assert [dispatcher.take(user, most=16) is not None for user in (1, 2, 1)] == [True] * 3
    assert [dispatcher.take(2, most=16) is not None for _ in range(7)] == [True] * 6 + [False]
    assert dispatcher.exhausted
