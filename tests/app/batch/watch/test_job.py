"""Jobs as a screen sees them, with real processes: started, paused, resumed, attached to."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.batch.journal.journal import journal_path
from app.batch.watch import records
from app.batch.watch.job import JobError, Phase, attach, start_job
from app.batch.watch.preview import open_row
from app.batch.watch.process import Foreign
from app.batch.watch.records import known_jobs
from app.batch.watch.rows import RowState
from tests.app import stopping
from tests.app.batch.watch.conftest import command_of, finish, form_for, wait, write_job
from tests.app.workers import worker_of
from tests.support import read_rows

ROWS = 24


def process_of(out: Path) -> psutil.Process:
    """The process that a job was started as."""
    record = records.record_of(out)
    assert record is not None
    assert record.pid is not None
    return psutil.Process(record.pid)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Jobs that are started from then on stop after so many rows of their own; see ``stopping``."""

    def set_places(rows: int, **places: bool) -> None:
        for name, value in stopping.after_rows(tmp_path / "held", rows, **places).items():
            monkeypatch.setenv(name, value)

    return set_places


def go_on(process: psutil.Process) -> None:
    process.send_signal(signal.SIGCONT)


def answered(out: Path) -> Counter[int]:
    """How often the journal has an answer for each row."""
    return Counter(line["index"] for line in read_rows(journal_path(out)) if line.get("ok"))


def test_a_job_from_begin_to_end_with_a_pause(
    gguf_file: Path, tmp_path: Path, hold: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(2, loading=True)
    source, out = write_job(tmp_path / "in.jsonl", ROWS, bad=1), tmp_path / "out.jsonl"
    job = start_job(command_of(form_for(source, gguf_file), tmp_path))
    seen: list[Phase] = []

    def look() -> Phase:
        seen.append(job.view().phase)
        return seen[-1]

    runs = process_of(out)
    wait(job, lambda: look() is Phase.LOADING)
    wait(job, lambda: worker_of(runs) is not None)
    worker = worker_of(runs)
    assert worker is not None
    stopping.wait_stopped(worker)
    go_on(worker)
    stopping.wait_stopped(runs)
    wait(job, lambda: look() is Phase.RUNNING)
    assert job.view().done == 3
    monkeypatch.delenv("PYTHONPATH")
    job.pause()
    go_on(runs)
    finish(job)
    paused = job.view()
    assert paused.phase is Phase.PAUSED
    # Running rows were finished, and the command had its say.
    end = job.events.end
    assert end is not None
    assert (end["ended"], end["answered"]) == ("signal", paused.answered)
    assert sum(answered(out).values()) == paused.answered
    assert 2 <= paused.answered < ROWS
    assert not out.exists()
    with pytest.raises(JobError, match="does not run"):
        job.pause()
    job.resume()
    with pytest.raises(JobError, match="runs already"):
        job.resume()
    assert job.command is not None
    with pytest.raises(JobError, match="runs on"):
        start_job(job.command)
    wait(job, lambda: not look().active)
    order = [Phase.STARTING, Phase.LOADING, Phase.RUNNING, Phase.WRITING, Phase.DONE]
    assert {Phase.LOADING, Phase.RUNNING, Phase.DONE} <= set(seen) <= {*order, Phase.PAUSED}
    view = job.view()
    assert (view.rows, view.done, view.failed, view.own) == (ROWS + 1, ROWS + 1, 1, True)
    assert (view.slots, view.running, view.cached) == (2, 0, paused.answered)
    end = job.events.end
    assert end is not None
    for name in ("prompt_tokens", "completion_tokens"):
        assert getattr(view, name) == end[name]
    assert f"{ROWS} answered ({view.cached} of them earlier), 1 failed" in view.lines[0]
    states = Counter(job.state(i) for i in range(ROWS))
    assert states == {RowState.DONE: ROWS - view.cached, RowState.EARLIER: view.cached}
    assert job.state(ROWS) is RowState.INVALID
    assert job.order("failed") == [ROWS]
    assert answered(out) == Counter(range(ROWS))
    answer = job.answer(ROWS - 1)
    assert answer is not None
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"]
    assert 1 <= answer.usage["completion_tokens"] <= 16
    assert answer.timings is not None
    assert answer.timings["prefill_tps"]
    # The row as OUT has it.
    record = read_rows(out)[7]
    opened = open_row(job, 7)
    assert (opened.id, opened.prompt, opened.note) == ("row-7", "What is 17 + 0?", "")
    assert opened.answers == (record["response"],)
    assert "tok/s" in opened.figures
    bad = open_row(job, ROWS)
    assert "prompt" in (bad.error or "")
    assert not bad.answers

    # The input changes: an answer says that it belongs to another row.
    source.write_text('{"prompt": "What is new?"}\n' + source.read_text())
    assert "changed" in open_row(job, 1).note
    # What the command refuses is told in its words.
    again = start_job(command_of(form_for(source, gguf_file, max_tokens="9"), tmp_path))
    finish(again)
    view = again.view()
    assert (view.phase, again.exit_code) == (Phase.FAILED, 2)
    assert "started with other settings" in view.lines[0]
    assert any("max_tokens: 16 -> 9" in line for line in view.lines)
    source.unlink()
    assert "no such file" in open_row(job, 1).note
    assert open_row(job, 1).answers


def test_a_job_started_elsewhere_is_watched_and_its_death_told(
    gguf_file: Path,
    tmp_path: Path,
    ingot: Any,
    hold: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(5)  # more rows than the engine has at a time: figures were told before the last one
    source, out = write_job(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    options = ("--model", gguf_file, "--slots", "2", "--max-tokens", "16", "--quiet")
    process = ingot.start("batch", source, out, *options)
    stopping.wait_stopped(process)
    job = attach(out)
    assert out in [known.output for known in known_jobs() if known.state == "running"]
    wait(job, lambda: job.view().done == 5)
    assert job.view().phase is Phase.RUNNING
    view = job.view()
    assert not view.own
    assert view.slots is None
    assert view.decode_tps_now is not None
    for action in (job.pause, job.stop):
        with pytest.raises(JobError, match="elsewhere"):
            action()
    process.kill()
    process.wait()
    wait(job, lambda: not job.view().phase.active)
    killed = job.view()
    assert killed.phase is Phase.DIED
    assert "kept" in killed.lines[0]
    # The journal says how it was started: it is resumed from here by whoever has seen that.
    command = job.resuming()
    assert isinstance(command, Foreign)
    assert not command.warnings
    assert f"--model={gguf_file}" in command.shown
    with pytest.raises(JobError, match="not started from here"):
        job.resume()
    job.resume(command)
    runs = process_of(out)
    stopping.wait_stopped(runs)
    monkeypatch.delenv("PYTHONPATH")
    wait(job, lambda: job.view().phase is Phase.RUNNING)
    # As a later session finds it: its process is no child of the one that looks.
    later = attach(out)
    wait(later, lambda: later.view().slots is not None)
    assert later.own
    runs.kill()
    finish(job)
    assert job.view().phase is Phase.DIED
    assert "signal 9" in job.view().lines[0]
    finish(later)
    assert later.view().phase is Phase.DIED
    later.resume()
    finish(later)
    view = later.view()
    assert (view.phase, view.own, view.done) == (Phase.DONE, True, ROWS)
    assert view.cached >= killed.done
    assert answered(out) == Counter(range(ROWS))
    known = {known.output: known for known in known_jobs()}
    assert (known[out].state, known[out].rows) == ("finished", ROWS)


def test_there_is_nothing_to_attach_to(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError, match="no job here"):
        attach(tmp_path / "none.jsonl")
    (tmp_path / "some.jsonl").write_text("{}\n")
    with pytest.raises(JobError, match="no journal"):
        attach(tmp_path / "some.jsonl")
    monkeypatch.setattr(records, "_running", lambda: ())  # jobs of others on this machine
    file = home / "state" / "jobs" / "0123456789abcdef" / "record.json"
    file.parent.mkdir(parents=True)
    for output in ("", "/", "x" * 70_000, "\0", 5):  # what is no output has no record
        said = {"output": output, **dict.fromkeys(("command", "folder", "pid", "born")), "at": 5.0}
        file.write_text(json.dumps(said))
        assert all(known.state == "gone" for known in known_jobs())
