"""Journals that came from elsewhere: what they say is shown, and run only when it was agreed to."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import Journal, journal_path
from app.batch.journal.lines import RUN, run_note
from app.batch.spec import BatchSpec, OutputOptions, RunningOptions
from app.batch.watch import records
from app.batch.watch.form import JobForm, beside, forget, presets, save
from app.batch.watch.job import JobError, WatchedJob, attach
from app.batch.watch.process import BatchCommand, Foreign, command_from
from runtimes.errors import RequestError
from tests.app.batch.watch.conftest import write_job
from tests.support import write_rows


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _journal(out: Path, *command: object, folder: object = None) -> Path:
    """A journal beside ``out`` whose last run, which was elsewhere, says ``command``."""
    path = journal_path(out)
    with Journal(path) as journal:
        journal.begin({"model": "m", "fingerprint": "x"})
        note = run_note(rows=3, input_rows=3, invalid=0, reused=0, format="jsonl", input="in.txt")
        said = [str(word) if isinstance(word, Path) else word for word in command]
        folder = str(out.parent) if folder is None else folder
        journal.note(RUN, note | {"host": "far", "command": said, "folder": folder})
    return path


def _read(out: Path) -> WatchedJob:
    job = attach(out)
    while job.poll():
        pass
    return job


_JOB = ["batch", "in.txt", "out.jsonl", "-m", "m"]
_OTHERS: dict[str, list[object]] = {
    **json.loads(Path(__file__).with_name("no_jobs.json").read_text()),
    "more than can be read": [*_JOB, "--system", "x" * 10_000],
    "very many words": [*_JOB, *["--logprobs"] * 20_000],
}


@pytest.mark.parametrize("what", _OTHERS)
def test_what_is_no_job_with_this_output_is_refused(here: Path, what: str) -> None:
    out, victim = here / "out.jsonl", here / "victim"
    victim.write_text("precious")
    (here / "in.txt").write_text("a prompt\n")
    _journal(out, *_OTHERS[what])
    job = _read(out)
    before = sorted(here.iterdir())
    for use in (job.resuming, job.resume):
        with pytest.raises(RequestError) as raised:
            use()
        assert len(str(raised.value)) < 1000
    assert (sorted(here.iterdir()), victim.read_text()) == (before, "precious")
    assert not job.own


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ((), None),
        (("--report", "victim"), "also writes the file"),
        (("--report=victim",), "also writes the file"),
        (("--ray", "10.0.0.1:6379"), "10.0.0.1:6379, which can run any program here"),
    ],
)
def test_a_job_is_run_only_as_it_was_agreed_to(
    here: Path, more: tuple[str, ...], warning: str | None
) -> None:
    out, victim = here / "out.jsonl", here / "victim"
    victim.write_text("precious")
    path = _journal(out, "batch", "in.txt", "out.jsonl", "-m", "m\x1b[31m", "--fresh", *more)
    job = _read(out)
    command = job.resuming()
    assert isinstance(command, Foreign)
    assert (not command.warnings) == (warning is None)
    assert warning is None or warning in command.shown
    assert "\x1b" not in command.shown
    assert "--fresh" not in command.shown
    assert shlex.quote(str(here / "in.txt")) in command.shown
    with pytest.raises(JobError, match="not started from here"):
        job.resume()
    # Another command than that which was looked at, as of a journal that changed meanwhile:
    other = _journal(here / "other", "batch", "in.txt", "out.jsonl", "-m", "other")
    path.write_bytes(other.read_bytes())
    with pytest.raises(JobError, match="not started from here"):
        job.resume(command)
    assert victim.read_text() == "precious"
    assert records.record_of(out) is not None
    assert not job.own


def test_a_command_that_was_given_here_is_not_asked_about(here: Path, gguf_file: Path) -> None:
    write_job(here / "in.jsonl", 2)
    words = ("batch", "in.jsonl", "out.jsonl", "-m", str(gguf_file), "--max-tokens", "2")
    command, out = command_from({"command": list(words), "folder": str(here)}), here / "out.jsonl"
    records.JobRecord(out, 0.0, command).save()
    _journal(out, *words)
    assert _read(out).resuming() == command
    # Somebody else has resumed it in another way since.
    _journal(out, *words, "--report", "victim")
    assert isinstance(_read(out).resuming(), Foreign)


def test_a_form_like_a_foreign_job_reaches_nothing_else(here: Path) -> None:
    report, ray = OutputOptions(report=here / "victim"), RunningOptions(ray="far:1")
    spec = BatchSpec("in.txt", "out.jsonl", "m", out=report, running=ray)
    command = BatchCommand(spec, here)
    _journal(here / "out.jsonl", *command.arguments)
    attach(here / "out.jsonl")
    (one,) = presets(here)
    assert one.form.spec() == BatchSpec("in.txt", "out.jsonl", "m")
    records.JobRecord(here / "out.jsonl", 0.0, command).save()  # one's own
    (one,) = presets(here)
    assert "--report" in beside(one.form)


# Files that are none


@pytest.mark.parametrize("kind", ["fifo", "link", "link to nowhere", "folder"])
def test_a_journal_that_is_no_file_is_refused(
    here: Path, command: Any, gguf_file: Path, kind: str
) -> None:
    write_rows(here / "in.jsonl", [{"prompt": "a"}])
    path, victim = journal_path(here / "out.jsonl"), here / "victim"
    {"fifo": os.mkfifo, "folder": Path.mkdir}.get(kind, lambda one: one.symlink_to(victim))(path)
    if kind == "link":
        victim.touch()
    job = ["in.jsonl", "out.jsonl", "-m", gguf_file, "-q"]
    for words in (job, ["status", "out.jsonl"], ["merge", "all.jsonl", "out.jsonl"]):
        done = command("batch", *words)
        assert done.returncode == 2, done.stderr
        assert words is not job or path.name in done.stderr
    assert not victim.exists() or victim.read_bytes() == b""
    assert records.last_run(path).run is None
    if kind != "link":
        with pytest.raises(JobError):
            attach(here / "out.jsonl")


# Two names of one file


def test_two_links_to_one_file_share_its_journal(here: Path, command: Any, gguf_file: Path) -> None:
    """The second job adds to what the first has, and none takes back the other's rows."""
    write_rows(here / "in.jsonl", [{"prompt": f"{number}"} for number in range(3)])
    real, names = here / "folder" / "real.jsonl", ("one.jsonl", "two.jsonl", "folder/real.jsonl")
    real.parent.mkdir()
    for name in names[:2]:
        (here / name).symlink_to(real)

    def job(name: str, *more: str) -> Any:
        words = ("-m", gguf_file, "--max-tokens", "2", "-q")
        return command("batch", "in.jsonl", name, *words, *more)

    assert [job(name).returncode for name in names] == [0, 0, 0]
    assert journal_path(real).read_bytes().count(b'"answer"') == 3
    assert journal_path(here / "one.jsonl") == journal_path(real)
    assert not [*here.glob("*.journal.jsonl")]
    with Journal(journal_path(real)):
        assert "another job is writing" in job("one.jsonl").stderr
    assert "other settings" in job("two.jsonl", "--temperature", "1").stderr
    # One that lies beside a link is not forgotten.
    journal_path(real).unlink()
    beside = here / "one.jsonl.journal.jsonl"
    beside.write_bytes(b"kept")
    done = job("one.jsonl")
    assert (done.returncode, beside.read_bytes()) == (2, b"kept")
    assert f"move it to {journal_path(real)}" in done.stderr


# What is saved under a name


def test_saved_forms_that_cannot_be_read_are_not_replaced(here: Path, home: Path) -> None:
    form = JobForm(input="in.txt", output="out.jsonl", model="m")
    save("one", form, here)
    path = home / "config" / "batch-presets.json"
    for text in ("{", "[]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(RequestError, match="damaged; move it away"):
            save("two", form, here)
        with pytest.raises(RequestError, match="damaged; move it away"):
            forget("two")
        assert path.read_text() == text
        assert presets(here) == []
    path.write_text('{"odd": 3, "other": {"arguments": [1], "folder": []}}')
    save("two", form, here)
    assert [one.name for one in presets(here)] == ["two"]
    assert '"odd": 3' in path.read_text()
