"""Rows are rearranged, none is lost, and what begins alike runs together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.adapters import AdapterFile
from app.batch.input.source import Row
from app.batch.schedule.pending_rows import arranged, rearranged
from app.openai.task import Task
from runtimes.request import Priority


def rows_of(texts: list[str], priorities: list[Priority] | None = None) -> list[Row]:
    made = []
    for index, text in enumerate(texts):
        priority = priorities[index] if priorities else Priority.NORMAL
        task = Task(({"role": "system", "content": text},), ("go",), priority=priority)
        made.append(Row(index, index + 1, index, task))
    return made


def test_rows_of_an_adapter_are_kept_together() -> None:
    poet, bard = (AdapterFile(name, Path(name), name) for name in ("poet", "bard"))
    chosen = [None, poet, bard, poet, None, bard]
    rows = [
        replace(row, task=replace(row.task, adapter=adapter))
        for row, adapter in zip(rows_of(["a", "b", "ccc", "b", "dd", "e"]), chosen, strict=True)
    ]
    assert indexes(arranged(rows)) == [2, 5, 4, 0, 1, 3]  # the longest row's first
    urgent = replace(rows[3], task=replace(rows[3].task, priority=Priority.HIGH))
    assert indexes(arranged([*rows[:3], urgent]))[0] == 3


def indexes(rows: list[Row]) -> list[int]:
    return [item.index for item in rows]


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


def test_what_begins_alike_follows_each_other() -> None:
    heads = ["a" * 100, "b" * 100, "c" * 100]
    order = indexes(arranged(rows_of([heads[i % 3] + str(i) for i in range(12)])))
    assert [index % 3 for index in order] in (
        [[first] * 4 + [second] * 4 + [third] * 4 for first, second, third in [
            (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0),
        ]]
    )  # fmt: skip


def test_long_rows_come_first() -> None:
    assert indexes(arranged(rows_of(["a", "b" * 300, "c" * 20]))) == [1, 2, 0]


def test_priority_comes_before_length() -> None:
    priorities = [Priority.LOW, Priority.CRITICAL, Priority.NORMAL]
    assert indexes(arranged(rows_of(["a" * 99, "b", "c"], priorities))) == [1, 2, 0]
