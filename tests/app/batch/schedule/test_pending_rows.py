"""What the journal lacks is computed once, the most urgent first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.prompting import Prompting
from app.batch.input.readers import JSONL
from app.batch.input.source import Source
from app.batch.journal.journal import Entries
from app.batch.schedule.pending_rows import pending_rows
from runtimes.request import Priority


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(list(Priority))), max_size=12),
    done=st.sets(st.integers(0, 11)),
)
def test_every_row_once_the_most_urgent_first(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, Priority]], done: set[int]
) -> None:
    path: Path = tmp_path_factory.mktemp("rows") / "in.jsonl"
    lines = ({"prompt": f"p{text}", "urgency": int(level)} for text, level in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Source(path, path.name, JSONL, Prompting(priority_field="urgency"))
    entries, keys = Entries(), []
    for row in source.rows():
        keys.append(row.key)
        if row.index in done:
            entries.add(row.key, row.index, row.index, True)
    levels = {level for _, level in rows}
    found = []
    for row in pending_rows(source, entries, levels):
        found.append(row)
        entries.add(row.key, row.index, 100 + row.index, True)  # as the job does
    assert len({row.index for row in found}) == len(found)
    assert len(entries) == len(rows)  # as many records as rows, so that each gets one
    assert sorted(entries.keys) == sorted(int.from_bytes(key[:8], "big") for key in keys)
    urgencies = [row.task.priority for row in found]
    assert urgencies == sorted(urgencies)
