"""How far a job is, as its journal tells it to anyone."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app import console
from app.batch.journal.journal import Journal, journal_path
from app.batch.journal.lines import END, RUN, end_note, run_note
from app.batch.report import progress
from app.batch.report.eta import Left, left_of
from app.batch.report.figures import JobFigures, status_of
from app.batch.report.progress import LeftNotes, Progress
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.rows import Rows
from app.openai.answer import Answer

RATES = ("elapsed_s", "prefill_tps_now", "prefill_tps", "decode_tps_now", "decode_tps")


def test_the_last_minute_ends_now(tmp_path: Path) -> None:
    """This process is the job: it runs, and has finished nothing for 19 minutes."""
    out = tmp_path / "out.jsonl"
    now = time.time()
    with Journal(journal_path(out)) as journal:
        journal.begin({})
        note = run_note(
            rows=100, input_rows=100, invalid=0, reused=0, shard=None, format="jsonl", input="x"
        )
        journal.note(RUN, note | {"at": now - 1200})
        for index in range(60):
            answer = Answer(usage={"completion_tokens": 5}, created=now - 1200 + index)
            journal.append(bytes(15) + bytes([index]), index, answer)
        told = status_of(out)
        assert (told.state, told.done, told.unfinished) == ("running", 60, 40)
        assert (told.rows_per_s_now, told.decode_tps_now) == (0, 0)
        journal.append(bytes(16), 60, Answer(usage={"completion_tokens": 6}, created=now))
        told = status_of(out)
        assert told.rows_per_s_now == 1 / 60
        assert told.decode_tps_now == 6 / 60


def test_a_run_that_says_nothing_of_shards_or_its_process_has_none(tmp_path: Path) -> None:
    with Journal(journal_path(tmp_path / "out.jsonl")) as journal:
        journal.begin({})
        note = run_note(
            rows=3, input_rows=3, invalid=0, reused=0, shard=None, format="jsonl", input="x"
        )
        for name in ("shard", "pid", "born"):
            note.pop(name, None)
        journal.note(RUN, note | {"at": time.time()})
        told = status_of(tmp_path / "out.jsonl")
        assert (told.shard, told.state) == (None, "stopped")


def test_the_time_left_is_what_the_job_noted_last(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    now = time.time()
    with Journal(journal_path(out)) as journal:
        journal.begin({})
        note = run_note(
            rows=9, input_rows=9, invalid=0, reused=0, shard=None, format="jsonl", input="x"
        )
        journal.note(RUN, note | {"at": now})
        assert status_of(out).time_left is None
        view = LeftNotes(journal)
        view.update(snapshot(None))
        size = journal_path(out).stat().st_size
        view.update(snapshot(Left(5000.0, 6000.0, 7000.0)))
        grown = journal_path(out).stat().st_size
        assert grown > size
        view.update(snapshot(Left(4999.0, 5999.0, 6999.0)))  # as was to be expected
        assert journal_path(out).stat().st_size == grown
        told = status_of(out)
        assert told.time_left is not None
        assert told.time_left.likely_s is not None
        assert 5900 < told.time_left.likely_s <= 6000
        assert told.as_json()["left_s"] == round(told.time_left.likely_s, 1)
        feed = FollowedJournal(journal_path(out), Rows())
        feed.read()
        assert feed.left is not None
        assert left_of(feed.left) == Left(5000.0, 6000.0, 7000.0)
        journal.note(END, end_note(0))
        assert status_of(out).time_left is None


def test_a_job_that_waits_for_its_grammar_says_so_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_SILENT_S", 0.0)
    console.messages.cache_clear()
    view = Progress(quiet=False)
    view.update(snapshot(None))
    assert capsys.readouterr().err == "", "else a line comes every ten seconds"
    for _ in range(2):
        view.update(replace(snapshot(None), compiling=True))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("0/9 rows")
    assert line.endswith("compiling what the answer must be")
    console.messages.cache_clear()


def test_what_is_being_waited_for_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, enough = [], threading.Event()

    def note(text: str) -> None:
        told.append(text.split(" ...")[0])
        if len(told) == 2:
            enough.set()

    monkeypatch.setattr(console, "_SILENT_S", 0.0)
    monkeypatch.setattr(console, "_AGAIN_S", 0.0)
    monkeypatch.setattr(console, "note", note)
    with console.doing(lambda: "reading" if told else "compiling"):
        assert enough.wait(60)
    assert told[:2] == ["compiling", "reading"]


def snapshot(left: Left | None) -> JobFigures:
    counts = {"rows": 9, "running": 2, "slots": 2}
    speeds = dict.fromkeys(RATES, 1.0)
    sizes = {"kv_tokens": 0, "kv_capacity": 0, "memory_bytes": 0}
    return JobFigures(**counts, **speeds, **sizes, time_left=left)
