"""Wherever a server ends, the next one on its data goes on: every row once, every file once."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from functools import partial

import pytest

from app.batch.journal.journal import Journal
from app.models.planning import choose
from app.options import ModelOptions, PlanOptions
from app.serve.batches import store, work
from app.serve.batches.folder import claimed
from app.serve.batches.store import RECORD
from app.serve.pool import ModelPool, ServedModel
from runtimes.errors import RequestError
from tests.app.serve.batches.conftest import alive, line, new, serving, settled
from tests.support import read_rows, until

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"  # the crashes are meant
)
ROWS = 5
WRITES = 5  # that become a batch: checked, finalizing, its two files, completed


class Crash(BaseException):
    """Nothing is done after it, as after a kill."""


@contextmanager
def crashing(number: int, *, after: bool):
    """The threads of a service end when something is made last on the disk for the ``number``-th
    time: before that or ``after`` it."""
    count = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((store, "write_record"), (store, "put")):
            real = getattr(module, name)

            def write(*arguments, real=real):
                at = next(count)
                if at < number or (at == number and after):
                    real(*arguments)
                if at >= number:
                    raise Crash

            patch.setattr(module, name, write)
        yield


def lines():
    """The last of them fails."""
    good = [line(i, max_tokens=4) for i in range(ROWS - 1)]
    return [*good, line(ROWS - 1, "word " * 3000)]


def crashed(service):
    """Until one of its threads has ended by itself."""
    until(lambda: not alive(service))


def check_whole(service, batch, status="completed"):
    """Every row once, in two files and no more."""
    batch = service.get(batch.id)
    assert batch.status == status
    assert (batch.counts.total, batch.counts.completed, batch.counts.failed) == (ROWS, ROWS - 1, 1)
    found = [service.files.path(one) for one in (batch.output_file_id, batch.error_file_id)]
    ids = [[row["custom_id"] for row in read_rows(path)] for path in found]
    assert ids == [[f"row-{i}" for i in range(ROWS - 1)], [f"row-{ROWS - 1}"]]
    assert len(service.files.all()) == 3
    folders = list(service.files.folder.iterdir())
    assert len(folders) == 3, folders
    folder = service._batches.folder(batch)
    until(lambda: [path.name for path in folder.iterdir()] == [RECORD])


def check_counted(service, batch):
    """What is told of a batch that goes on later is what its journal has, whatever its status."""
    for journal in service._batches.folder(batch).glob("*.journal.jsonl"):
        rows = [row["ok"] for row in read_rows(journal) if "key" in row]
        counts = service.get(batch.id).counts
        assert (counts.completed, counts.failed) == (rows.count(True), rows.count(False))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_an_end_at_any_write(server, tmp_path, number, after):
    with serving(tmp_path, server.pool) as service:
        batch = new(service, lines())
        with crashing(number, after=after):
            service.start()
            crashed(service)
    with serving(tmp_path, server.pool) as service:
        assert service.get(batch.id).ended == (number == WRITES and after)
        check_counted(service, batch)
        service.start()
        settled(service, batch)
        check_whole(service, batch)


def test_no_other_writes_are_to_be_tried(server, tmp_path):
    with serving(tmp_path, server.pool) as service:
        batch = new(service, lines())
        with crashing(WRITES + 1, after=False):
            service.start()
            settled(service, batch)
            check_whole(service, batch)


@pytest.mark.parametrize(("number", "after"), [(1, True), (2, True), (3, True), (4, True)])
def test_an_end_at_any_write_of_a_cancelled_batch(server, tmp_path, number, after):
    with serving(tmp_path, server.pool) as service:
        batch = new(service, lines())
        with crashing(2, after=False):
            service.start()
            crashed(service)  # when all rows are answered
    with serving(tmp_path, server.pool) as service:
        assert service.cancel(batch.id).status == "cancelling"
        with crashing(number, after=after):
            service.start()
            crashed(service)
    with serving(tmp_path, server.pool) as service:
        check_counted(service, batch)
        service.start()
        settled(service, batch)
        check_whole(service, batch, "cancelled")


@contextmanager
def ended_after(rows):
    """The server ends when it has kept so many answers."""
    told, real = itertools.count(1), Journal.append

    def append(journal, *arguments):
        real(journal, *arguments)
        if next(told) == rows:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", append)
        yield


def test_what_was_answered_is_not_asked_again(server, tmp_path):
    with serving(tmp_path, server.pool) as service, ended_after(3):
        batch = new(service, lines())
        service.start()
        crashed(service)
        [journal] = (tmp_path / "batches" / batch.id).glob("*.journal.jsonl")
        before = [row for row in read_rows(journal) if "key" in row]
        assert len(before) == 3
    with serving(tmp_path, server.pool) as service:
        check_counted(service, batch)
        service.start()
        settled(service, batch)
        check_whole(service, batch)
        answers = {
            row["custom_id"]: row["response"]["body"]["created"]
            for row in read_rows(service.files.path(service.get(batch.id).output_file_id))
        }
    for row in before:
        if row["ok"]:
            assert answers[f"row-{row['index']}"] == int(row["answer"]["created"])


def pool_of(**models):
    """A pool of these store."""
    return ModelPool(
        [
            ServedModel(name, partial(choose, str(path), ModelOptions(), PlanOptions(), "batch"))
            for name, path in models.items()
        ]
    )


def test_a_batch_waits_for_the_model_that_began_it(server, tmp_path, pebble_built):
    from quantize.resolve import resolve

    with serving(tmp_path, server.pool) as service, ended_after(2):
        batch = new(service, lines())
        service.start()
        crashed(service)
    other = resolve(pebble_built, recipe="q4_k_m")
    for models, said in (
        ({"granite": other}, "there is no model"),
        ({"pebble": other}, "is not what answered the first rows"),
    ):
        pool = pool_of(**models)
        with serving(tmp_path, pool) as service:
            service.start()
            seen = until(lambda service=service: service.get(batch.id), lambda now: now.errors)
            assert seen.status == "in_progress"
            assert said in seen.errors[0].message
            [(_, live)] = service.running()
            assert live is None
        pool.close()
    with serving(tmp_path, server.pool) as service:
        service.start()
        assert settled(service, batch).errors == ()
        check_whole(service, batch)


def test_a_model_that_cannot_be_loaded_fails_the_batch_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "FIRST_S", 0.001)
    missing = tmp_path / "gone.gguf"
    with serving(tmp_path / "data", pool_of(pebble=missing)) as service:
        batch = new(service, lines())
        service.start()
        batch = settled(service, batch)
        assert (batch.status, batch.errors[0].code) == ("failed", "engine_error")
        assert "gone.gguf" in batch.errors[0].message
        assert batch.output_file_id is None


def test_one_server_has_the_data(tmp_path, command, gguf_file):
    with claimed(tmp_path):
        with pytest.raises(RequestError, match="--data"), claimed(tmp_path):
            pass
        done = command("serve", gguf_file, "--data", tmp_path, "--port", 0)
    assert (done.returncode, "in use by another server" in done.stderr) == (2, True)
    with claimed(tmp_path):
        pass


def test_rows_whose_answers_are_damaged_are_asked_again(server, tmp_path):
    with serving(tmp_path, server.pool) as service:
        batch = new(service, lines())
        with crashing(3, after=False):
            service.start()
            crashed(service)  # when its files are to be written
    [journal] = (tmp_path / "batches" / batch.id).glob("*.journal.jsonl")
    data = journal.read_bytes()
    at = data.index(b'"ok":true')
    journal.write_bytes(data[:at] + b"#" + data[at + 1 :])
    with serving(tmp_path, server.pool) as service:
        service.start()
        settled(service, batch)
        check_whole(service, batch)
