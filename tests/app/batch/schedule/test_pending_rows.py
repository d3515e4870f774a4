"""What the journal lacks is computed once, the most urgent first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.prompting import Prompting
from app.batch.input.source import Source
from app.batch.input.tasks import Task
from app.batch.journal.journal import Entries
from app.batch.schedule.pending_rows import pending_rows
from app.batch.settings import row_key
from runtimes.request import Priority

DIGEST = b"settings"


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
    source = Source(path, path.name, "jsonl", Prompting(priority_field="urgency"))
    entries, keys = Entries(), []
    for row in source.rows():
        assert isinstance(row.task, Task)
        keys.append(row_key(DIGEST, row.task))
        if row.index in done:
            entries.add(keys[-1], row.index, row.index, True)
    levels = {level for _, level in rows}
    found = []
    for work in pending_rows(source, entries, DIGEST, levels):
        found.append(work)
        entries.add(work.key, work.row.index, 100 + work.row.index, True)  # as the job does
    assert len({work.row.index for work in found}) == len(found)
    assert len(entries) == len(rows)  # as many records as rows, so that each gets one
    assert sorted(entries.keys) == sorted(int.from_bytes(key[:8], "big") for key in keys)
    urgencies = [work.task.priority for work in found]
    assert urgencies == sorted(urgencies)
