"""How far a job is, as its journal tells it to anyone, and how it is told while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import Journal, journal_path
from app.batch.journal.lines import END, RUN, run_note
from app.batch.report.eta import Left, left_of
from app.batch.report.figures import JobFigures, status_of
from app.batch.report.progress import LeftNotes
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.rows import Rows
from app.openai.answer import Answer

RATES = ("elapsed_s", "prefill_tps_now", "prefill_tps", "decode_tps_now", "decode_tps")
SIZES = dict.fromkeys(("kv_tokens", "kv_capacity", "memory_bytes"), 0)
FIGURES = JobFigures(rows=9, running=2, slots=2, **dict.fromkeys(RATES, 1.0), **SIZES)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def journal(out: Path) -> Iterator[Journal]:
    with Journal(journal_path(out)) as journal:
        journal.begin({})
        yield journal


def begin(journal: Journal, rows: int, **changes: Any) -> None:
    """Note a run of this process."""
    counts = {"rows": rows, "input_rows": rows, "invalid": 0, "reused": 0}
    journal.note(RUN, run_note(**counts, format="jsonl", input="x") | changes)


def test_the_last_minute_ends_now(out: Path, journal: Journal) -> None:
    """This process is the job: it runs, and has finished nothing for 19 minutes."""
    now = time.time()
    begin(journal, 100, at=now - 1200)
    for index in range(60):
        answer = Answer(usage={"completion_tokens": 5}, created=now - 1200 + index)
        journal.append(bytes(15) + bytes([index]), index, answer)
    told = status_of(out)
    assert (told.state, told.done, told.unfinished) == ("running", 60, 40)
    assert (told.rows_per_s_now, told.decode_tps_now) == (0, 0)
    journal.append(bytes(16), 60, Answer(usage={"completion_tokens": 6}, created=now))
    told = status_of(out)
    assert (told.rows_per_s_now, told.decode_tps_now) == (1 / 60, 6 / 60)
    # A run that says nothing of its process has none.
    begin(journal, 3, pid=None, born=None, at=now)
    told = status_of(out)
    assert (told.shard, told.state) == (None, "stopped")


def test_the_time_left_is_what_the_job_noted_last(out: Path, journal: Journal) -> None:
    begin(journal, 9)
    assert status_of(out).time_left is None
    view, sizes = LeftNotes(journal), []
    soon = Left(4999.0, 5999.0, 6999.0)  # as was to be expected of the one before
    for left in (None, Left(5000.0, 6000.0, 7000.0), soon):
        view.update(replace(FIGURES, time_left=left))
        sizes.append(journal.path.stat().st_size)
    assert sizes[0] < sizes[1] == sizes[2]
    told = status_of(out)
    assert told.time_left is not None
    assert told.time_left.likely_s is not None
    assert 5900 < told.time_left.likely_s <= 6000
    assert told.as_json()["left_s"] == round(told.time_left.likely_s, 1)
    feed = FollowedJournal(journal.path, Rows())
    feed.read()
    assert feed.left is not None
    assert left_of(feed.left) == Left(5000.0, 6000.0, 7000.0)
    journal.note(END, {"unfinished": 0})
    assert status_of(out).time_left is None
