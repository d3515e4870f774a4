"""Whatever ends `ingot batch`, the same command goes on, and no finished row is computed twice."""

from __future__ import annotations

import json
import random
import resource
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import Journal, journal_path
from tests.app import stopping
from tests.app.workers import worker_of
from tests.support import read_rows

ROWS = 160
SLOTS = 8
FLAGS = ["--max-tokens", "24", "--slots", str(SLOTS), "--json", "--raw", "--threads", "1"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = (json.dumps({"id": i, "prompt": f"The number {i} is"}) for i in range(ROWS))
    path.write_text("\n".join(lines) + "\n")
    return path


def last(text: str) -> dict[str, Any]:
    """The final event of ``--json``."""
    event: dict[str, Any] = json.loads(text.splitlines()[-1])
    assert event["event"] == "end"
    return event


def journaled(out: Path) -> int:
    path = out.with_name(out.name + ".journal.jsonl")
    return path.read_bytes().count(b'"ok":true') if path.exists() else 0


def wait_for(out: Path, count: int, process: Any) -> None:
    """Until the journal holds ``count`` rows, or the job has ended."""
    while journaled(out) < count and process.poll() is None:
        time.sleep(0.01)


def check_complete(out: Path) -> None:
    assert [record["id"] for record in read_rows(out)] == list(range(ROWS))
    lines = read_rows(out.with_name(out.name + ".journal.jsonl"))
    computed = Counter(line["index"] for line in lines if "index" in line)
    assert computed == Counter(range(ROWS))  # each row finished once


def test_kill_at_any_moment(ingot: Any, gguf_file: Path, rows: Path, tmp_path: Path) -> None:
    out, calm = tmp_path / "out.jsonl", tmp_path / "calm.jsonl"
    # Else two tokens as good as each other may change places: a row has other companions then.
    flags = [*FLAGS, "--reproducible"]
    command = ["batch", rows, out, "--model", gguf_file, *flags]
    chance = random.Random(5)
    for kill in range(4):
        process = ingot.start(*command)
        wait_for(out, kill * ROWS // 5 + 1, process)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.communicate()
        held = journaled(out)
    done = ingot(*command)
    assert done.returncode == 0, done.stderr
    assert last(done.stdout)["reused"] >= min(held, ROWS)
    check_complete(out)

    assert ingot("batch", rows, calm, "--model", gguf_file, *flags).returncode == 0
    assert calm.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("number", "times"),
    [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)],
    ids=["ctrl-c", "ctrl-c-twice", "sigterm"],
)
def test_signals(
    ingot: Any, gguf_file: Path, rows: Path, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    out = tmp_path / "out.jsonl"
    command = ["batch", rows, out, "--model", gguf_file, *FLAGS]
    held = 2 * SLOTS
    process = ingot.start(*command, env=stopping.after_rows(tmp_path / "held", held))
    stopping.wait_stopped(process)
    worker = worker_of(process)
    assert worker is not None
    worker.suspend()  # what runs is not finished before the last signal
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    if times == 2:  # two that come together count as one
        while b"finishing the running rows" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
    worker.resume()
    text, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert b"resumes from here" in err
    report = last(text.decode())
    assert report["unfinished"] > 0
    assert journaled(out) == report["answered"] == ROWS - report["unfinished"]
    if times == 1:
        # What ran was finished: more than was there, but nothing new was begun.
        assert held < report["answered"] <= held + 2 * SLOTS
    assert not out.exists()

    assert ingot(*command).returncode == 0
    check_complete(out)


def test_a_full_disk(ingot: Any, gguf_file: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ["batch", rows, out, "--model", gguf_file, *FLAGS]

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = ingot(*command, preexec=small_files)
    assert done.returncode == 4, done.stderr
    assert "make room" in done.stderr
    assert not out.exists()
    held = journaled(out)
    assert 0 < held < ROWS

    done = ingot(*command)
    assert done.returncode == 0, done.stderr
    assert last(done.stdout)["reused"] == held
    check_complete(out)


def test_two_jobs_on_one_output(ingot: Any, gguf_file: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Journal(journal_path(out)):
        second = ingot("batch", rows, out, "--model", gguf_file, *FLAGS)
    assert second.returncode == 2
    assert "another job" in second.stderr
    assert not out.exists()
