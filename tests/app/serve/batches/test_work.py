"""The two threads of the batches: nothing ends them, nothing makes them spin, and what ended the
whole process again and again is not begun once more."""

from __future__ import annotations

import errno
import json
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from app.serve.batches import check, store, work
from app.serve.batches.store import (
    ATTEMPT,
    RECORD,
    Batch,
    BatchCounts,
    Batches,
    new_batch_id,
    new_file_id,
    write_record,
)
from app.serve.batches.work import OtherModelError, Waits
from runtimes.errors import IngotError, OutOfMemoryError
from tests.app.serve.batches.conftest import alive, line, new, serving, settled
from tests.app.serve.batches.test_restart import crashed, ended_after
from tests.app.serve.conftest import CHAT, started
from tests.support import read_rows, until

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"  # a crash is meant
)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Batches that wait are tried again at once."""
    monkeypatch.setattr(work, "FIRST_S", 0.001)
    monkeypatch.setattr(work, "_STUCK_S", 0.01)


@contextmanager
def failing(module: Any, name: str, error: Exception, times: int = 3) -> Iterator[list[int]]:
    """``name`` of ``module`` raises ``error`` so often, and then does what it does."""
    left, real = [times], getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, call)
        yield left


ERRORS = [FULL, MemoryError(), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")]
PLACES = [
    (work, "check"),
    (work, "run"),
    (work, "write_results"),
    (store, "write_record"),
    (store, "replace_plain"),
    (check, "Journal"),
    (work.BatchService, "_next"),
    (work.BatchService, "_put_off"),
    (work.BatchService, "_begin"),
    (work.BatchService, "_finish"),
]


@pytest.mark.parametrize(
    ("place", "error"), zip(PLACES, cycle(ERRORS)), ids=lambda one: str(one)[-20:]
)
def test_whatever_fails_a_few_times_the_threads_go_on(server, tmp_path, place, error):
    with serving(tmp_path, server.pool) as service:
        batch = new(service, [line(0, max_tokens=2)])
        with failing(*place, error) as left:
            service.start()
            assert settled(service, batch).status == "completed"
            assert left == [0] or place[1] == "_put_off"
        assert alive(service)
        until(lambda: service.problem() is None)


def test_with_room_again_what_could_not_be_marked_is(server, tmp_path, monkeypatch):
    """A batch that fails at last, while the disk is full: it waits, and the others run."""
    full, real_write, real_run = threading.Event(), store.write_record, work.run

    def write(folder: Path, batch: Batch) -> None:
        if full.is_set():
            raise FULL
        real_write(folder, batch)

    def run(folder: Path, batch: Batch, *arguments: Any, **named: Any) -> bool:
        full.set()
        raise ValueError("\ud800")

    monkeypatch.setattr(store, "write_record", write)
    monkeypatch.setattr(work, "run", run)
    with serving(tmp_path, server.pool) as service:
        bad = new(service, [line(0, max_tokens=2)])
        service.start()
        seen = until(
            lambda: service.get(bad.id), lambda now: now.errors and "space" in now.errors[0].message
        )
        assert seen.status == "in_progress"
        assert str(tmp_path) not in seen.errors[0].message
        assert alive(service)
        full.clear()
        monkeypatch.setattr(work, "run", real_run)
        assert settled(service, bad).status == "completed"


def test_a_batch_that_never_works_fails_with_a_text_that_can_be_told(server, tmp_path):
    with serving(tmp_path, server.pool) as service:
        for place, error in (
            ((work, "run"), IngotError("\ud800\x1b]0;x\x07" + "y" * 100_000)),
            ((work, "check"), IngotError(f"{tmp_path}/batches/x is \udcff")),
            ((work, "check"), RecursionError()),
            ((work, "write_results"), MemoryError()),
        ):
            batch = new(service, [line(0, max_tokens=2)])
            with failing(*place, error, times=1000):
                service.start() if batch.id == service.all()[0].id else None
                batch = settled(service, batch)
            [failed] = batch.errors
            assert (batch.status, failed.code) == ("failed", "engine_error")
            assert failed.message.isprintable()
            assert len(failed.message) <= 1000
            assert str(tmp_path) not in failed.message
            json.dumps(batch.as_json(), ensure_ascii=False).encode()
        assert alive(service)
    with serving(tmp_path, server.pool) as service:
        assert {batch.status for batch in service.all()} == {"failed"}


def test_a_batch_may_wait_for_years(tmp_path):
    found = Waits(tmp_path)
    for _ in range(3000):
        assert found.begin("a", OutOfMemoryError("full"), 0) is None
    assert 0 < found.left("a") <= work.LONGEST_S


def test_a_wait_that_is_over_wakes_nobody_who_cannot_help(server, tmp_path, monkeypatch):
    """While one batch is answered for hours, another one's wait ends: the thread of files has
    nothing to do with that, and sleeps."""
    slept: dict[str, list[float | None]] = {}
    running, let_go = threading.Event(), threading.Event()
    real = work.run

    def run(folder: Path, batch: Batch, *arguments: Any, **named: Any) -> bool:
        if batch.id == other.id:
            raise OtherModelError("another model")
        running.set()
        assert let_go.wait(120)
        return real(folder, batch, *arguments, **named)

    with serving(tmp_path, server.pool) as service:
        changed = service._batches.changed
        wait = changed.wait

        def noted(timeout: float | None = None) -> bool:
            slept.setdefault(threading.current_thread().name, []).append(timeout)
            return wait(timeout)

        monkeypatch.setattr(work, "run", run)
        monkeypatch.setattr(changed, "wait", noted)
        other = new(service, [line(0, max_tokens=2)])
        service.start()
        until(lambda: service.get(other.id).errors)
        long = new(service, [line(1, max_tokens=2)])
        assert running.wait(120)
        assert service._waits.left(other.id) <= work.LONGEST_S
        until(lambda: service._waits.left(other.id) == 0)
        slept.pop("ingot-batch-files", None)
        with changed:
            changed.notify_all()
        until(lambda: slept.get("ingot-batch-files"))
        assert set(slept["ingot-batch-files"]) == {None}
        monkeypatch.setattr(work, "run", real)
        let_go.set()
        assert settled(service, long).status == "completed"
        assert settled(service, other).status == "completed"


JOURNALS = json.loads((Path(__file__).parent / "wrong_journals.json").read_text())
JOURNALS.append(["\0" * 10_000])


def test_journals_that_nobody_wrote_so_stop_no_other_batch(server, tmp_path):
    """Neither where the server starts, nor where it runs."""
    bad: list[Batch] = []
    with serving(tmp_path, server.pool) as service:
        for said, late in zip(JOURNALS, cycle((False, True)), strict=False):
            changes = {"model": "pebble", "counts": BatchCounts(1, 0, 0), "status": "in_progress"}
            if late:
                ids = {"output_file_id": new_file_id(), "error_file_id": new_file_id()}
                changes |= {"status": "finalizing", "ending": "completed", **ids}
            batch = new(service, [line(0, max_tokens=2)])
            folder = service._batches.folder(batch)
            write_record(folder, batch.now(**changes))
            texts = [one if isinstance(one, str) else sealed(one) for one in said]
            (folder / "out.jsonl.journal.jsonl").write_text("".join(texts))
            bad.append(batch)
        good = new(service, [line(0, max_tokens=2)])
    with serving(tmp_path, server.pool) as service:
        assert len(service.running()) == len(bad) + 1
        service.start()
        assert settled(service, good).status == "completed"
        assert {settled(service, one).status for one in bad} <= {"completed", "failed"}
        assert alive(service)
        assert service.problem() is None
        assert len(service.all()) == len(bad) + 1
    service_again = Batches(tmp_path / "batches")
    assert not any("damaged" in str(batch.errors) for batch in service_again.all())


def sealed(record: dict[str, Any]) -> str:
    """A line of a journal, whatever is in it."""
    body = json.dumps(record)[:-1]
    return f'{body},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'


# What ends the process


def held(data: Path, rows: int) -> str:
    """A batch whose input takes seconds to be read; returns its id."""
    batch = Batch(new_batch_id(), 1.7e9, CHAT, "file-" + "1" * 24)
    folder = data / "batches" / batch.id
    folder.mkdir(parents=True)
    text = json.dumps(line(0, "What is 2 + 2? " * 10, temperature=0.5))
    with (folder / "input.jsonl").open("w") as file:
        for number in range(rows):
            file.write(text.replace('"row-0"', f'"row-{number}"') + "\n")
    write_record(folder, batch)
    return batch.id


def note(data: Path, batch: str, **said: Any) -> None:
    (data / "batches" / batch / ATTEMPT).write_text(json.dumps(said))


def attempt(data: Path, batch: str) -> dict[str, Any]:
    """What is noted of the attempt that runs; nothing where none does."""
    try:
        return dict(json.loads((data / "batches" / batch / ATTEMPT).read_text()))
    except FileNotFoundError:
        return {}


def test_what_ends_the_process_again_and_again_is_not_begun_once_more(
    ingot, server, gguf_file, tmp_path
):
    guilty, other = held(tmp_path, 50_000), held(tmp_path, 2)
    process, _ = started(ingot, tmp_path, f"pebble={gguf_file}")
    noted = {"stage": "validating", "rows": 0, "began": 1}
    until(lambda: attempt(tmp_path, guilty) == noted)
    process.kill()
    process.wait()
    assert attempt(tmp_path, guilty) == noted
    with serving(tmp_path, server.pool) as service:  # which is told to end: that is no death
        service.start()
        until(lambda: attempt(tmp_path, guilty) == {**noted, "began": 2})
    assert attempt(tmp_path, guilty) == {}
    assert read_rows(tmp_path / "batches" / guilty / RECORD)[0]["status"] == "validating"
    note(tmp_path, guilty, **{**noted, "began": 2})
    with serving(tmp_path, server.pool) as service, ended_after(1):
        service.start()
        crashed(service)
        [error] = service.get(guilty).errors
        assert (service.get(guilty).status, error.code) == ("failed", "server_ended")
        assert "2 times" in error.message
        assert [path.name for path in (tmp_path / "batches" / guilty).iterdir()] == [RECORD]
    note(tmp_path, other, stage="in_progress", rows=1, began=3)
    with serving(tmp_path, server.pool) as service:
        service.start()
        batch = settled(service, service.get(other))
        assert (batch.status, batch.errors[0].code) == ("failed", "server_ended")
        assert batch.counts.completed == 1
        assert len(read_rows(service.files.path(batch.output_file_id))) == 1
        again = new(service, [line(0, max_tokens=2)])
        assert settled(service, again).status == "completed"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"stage": 5}', '{"stage": "validating"}', "x" * 5000]
)
def test_a_damaged_note_of_an_attempt_counts_for_nothing(tmp_path, text):
    batch = held(tmp_path, 1)
    batches = Batches(tmp_path / "batches")
    (tmp_path / "batches" / batch / ATTEMPT).write_text(text)
    assert batches.begun(batches.get(batch), "validating") == 0
