"""Whatever ends `ingot batch`, the same command goes on, and no finished row is computed twice."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from app.batch.journal.journal import journal_path
from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.app.workers import worker_of
from tests.support import read_rows, write_rows

ROWS = 48
SLOTS = 8
FLAGS = ["--max-tokens", "24", "--slots", str(SLOTS), "--raw"]


@pytest.fixture
def batch(batch: Batch) -> Batch:
    rows = [{"id": i, "prompt": f"The number {i} is"} for i in range(ROWS)]
    write_rows(batch.source, rows)
    return batch


def check_complete(batch: Batch) -> None:
    assert [record["id"] for record in batch.records] == list(range(ROWS))
    assert sorted(batch.computed) == list(range(ROWS))  # each row finished once


def test_kill_at_any_moment(batch: Batch, ingot: Any, tmp_path: Path) -> None:
    # Else two tokens as good as each other may change places: a row has other companions then.
    flags = [*FLAGS, "--reproducible"]
    for kill, rows in enumerate((1, 17)):
        held = stopping.after_rows(tmp_path / f"held{kill}", rows)
        process = ingot.start(*batch.words(*flags), env=held)
        stopping.wait_stopped(process)
        process.kill()
        process.communicate()
    assert len(batch.computed) == 18
    assert batch.end(*flags)["reused"] == 18
    check_complete(batch)
    calm = tmp_path / "calm.jsonl"
    batch(*flags, out=calm)
    assert calm.read_bytes() == batch.out.read_bytes()


@pytest.mark.parametrize(
    ("number", "times"),
    [(signal.SIGINT, 2), (signal.SIGTERM, 1)],
    ids=["ctrl-c-twice", "sigterm"],
)
def test_signals(
    batch: Batch, ingot: Any, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    held = 2 * SLOTS
    env = stopping.after_rows(tmp_path / "held", held)
    process = ingot.start(*batch.words(*FLAGS, "--json"), env=env)
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
    report = json.loads(text.splitlines()[-1])
    assert report["unfinished"] > 0
    answered = sum(line.get("ok", False) for line in read_rows(journal_path(batch.out)))
    assert answered == report["answered"] == ROWS - report["unfinished"]
    if times == 1:
        # What ran was finished: more than was there, but nothing new was begun.
        assert held < answered <= held + 2 * SLOTS
    assert not batch.out.exists()
    batch(*FLAGS)
    check_complete(batch)


def test_a_full_disk(batch: Batch, ingot: Any) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    clean = {"PYTHONDONTWRITEBYTECODE": "1"}  # else modules are compiled in part
    done = ingot(*batch.words(*FLAGS, "-q"), preexec=small_files, env=clean)
    assert done.returncode == 4, done.stderr
    assert "make room" in done.stderr
    assert not batch.out.exists()
    held = len(batch.computed)
    assert 0 < held < ROWS
    assert batch.end(*FLAGS)["reused"] == held
    check_complete(batch)
