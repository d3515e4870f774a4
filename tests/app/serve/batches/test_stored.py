"""What lies in a server's folder of data: nothing in it stops the server, leads out of the folder
or makes a list fail, and nothing is written that could not be read again."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from app.serve.batches.folder import claimed, prepare
from app.serve.batches.store import (
    BATCH_INPUT,
    OUTPUT,
    RECORD,
    Batch,
    BatchCounts,
    BatchError,
    Batches,
    Files,
    read_record,
    write_record,
)
from app.serve.batches.work import BatchService
from app.serve.errors import HttpError
from app.serve.options import ServeSampling
from app.serve.pool import ModelPool
from runtimes.errors import RequestError

FILE, OTHER = "file-" + "1" * 24, "file-" + "2" * 24
DEEP = "[" * 400 + "]" * 400


def name(number: int) -> str:
    return f"batch_{number:024x}"


def good(number: int, **changes: Any) -> Batch:
    """A batch that has been completed."""
    batch = Batch(
        name(number),
        1.7e9 + number,
        "/v1/chat/completions",
        FILE,
        {"a": "ä"},
        status="completed",
        at={"completed": 1_700_000_000},
        model="pebble",
        counts=BatchCounts(3, 2, 1),
        errors=(BatchError.of("x", "said", 3, "body.model"),),
        ending="completed",
        output_file_id=OTHER,
        usage={"prompt_tokens": 5},
    )
    return replace(batch, **changes)


def put(folder: Path, batch: Batch, **changes: Any) -> Path:
    """What is on the disk of a batch; ``changes`` are of its record and may be anything."""
    place = folder / batch.id
    place.mkdir(parents=True)
    body = json.dumps({**asdict(batch), **changes}).encode()[:-1]  # what no server would write too
    (place / RECORD).write_bytes(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    return place


def service_of(data: Path) -> BatchService:
    return BatchService(data, ModelPool([]), ServeSampling().params())


def listed(service: BatchService) -> dict[str, str]:
    """The statuses of all batches, as a client gets them."""
    found = [batch.as_json() for batch in service.all()]
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    return {one["id"]: one["status"] for one in found}


SAID = json.loads((Path(__file__).parent / "wrong_records.json").read_text())
ERROR = {"code": "", "message": "", "line": 1, "param": None}
WRONG: list[tuple[str, dict[str, Any]]] = [
    *SAID["records"],
    ("deep metadata", {"metadata": {"a": json.loads(DEEP)}}),
    ("a long model", {"model": "x" * 100_000}),
    ("a huge time", {"created": 10**400}),
    ("a huge record", {"metadata": {"a": "x" * 2_000_000}}),
    ("a million errors", {"errors": [ERROR] * 10_000}),
]


def test_records_that_no_server_writes_cost_their_own_batches_only(tmp_path):
    put(tmp_path / "batches", good(999))
    places = {}
    for number, (what, changes) in enumerate(WRONG):
        place = put(tmp_path / "batches", good(number), **changes)
        (place / "input.jsonl").write_text("{}")
        places[name(number)] = what, place, (place / RECORD).read_bytes()
    victim = tmp_path / "elsewhere"
    victim.mkdir()
    (victim / "letter").write_text("dear")
    service = service_of(tmp_path)
    assert listed(service) == {**dict.fromkeys(places, "failed"), name(999): "completed"}
    for identity, (what, place, before) in places.items():
        [error] = service.get(identity).errors
        assert error.code == "damaged_record", what
        assert ("1,048,576 bytes" in error.message) == (what == "a huge record")
        assert str(tmp_path) not in error.message
        assert len(error.message) < 1500
        assert (place / RECORD).read_bytes() == before
        assert (place / "input.jsonl").exists()
        with pytest.raises(HttpError, match="failed"):
            service.cancel(identity)
    assert (victim / "letter").read_text() == "dear"
    assert service.running() == []


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def linked(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def gone(path: Path) -> None:
    path.symlink_to("nowhere")


def folder(path: Path) -> None:
    (path / "sub").mkdir(parents=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**26)


def nested(path: Path) -> None:
    path.write_text(DEEP * 100)


THINGS = [pipe, listening, linked, loop, gone, folder, empty, zeros, nested]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("make", THINGS)
def test_anything_may_lie_in_the_place_of_anything(tmp_path, make):
    """As records, journals, inputs, files and folders: the server starts, and serves the others."""
    batches, files = tmp_path / "batches", tmp_path / "files"
    put(batches, good(1))
    open_ = {"status": "in_progress", "ending": None, "output_file_id": None}
    for number, place in enumerate((RECORD, "attempt.json", "sub", f"{RECORD}.partial"), 2):
        path = put(batches, good(number)) / place
        if place == RECORD:
            path.unlink()
        make(path)
    make(put(batches, good(6, **open_)) / "out.jsonl.journal.jsonl")
    make(put(batches, good(7, **open_)) / "input.jsonl")
    make(batches / name(8))
    for path in (batches / "x", batches / ("." + name(9)), files / "y", files / ("." + FILE)):
        path.parent.mkdir(exist_ok=True)
        make(path)
    make(files / FILE)
    for number, place in enumerate(("content", "meta.json")):
        path = files / f"file-{number:024x}"
        path.mkdir(parents=True)
        (path / "content").write_text("{}")
        (path / place).unlink(missing_ok=True)
        make(path / place)
    service = service_of(tmp_path)
    found = listed(service)
    assert found[name(1)] == "completed"
    assert found[name(2)] == "failed"
    assert [found[name(number)] for number in (3, 4, 5)] == ["completed"] * 3
    assert found[name(6)] == found[name(7)] == "in_progress"
    assert found.get(name(8), "failed") == "failed"
    assert len(service.running()) == 2
    json.dumps([file.as_json() for file in service.files.all()]).encode()
    for file in service.files.all():
        with service.files.open(file.id) as content:
            assert file.bytes in (2**26, len(content.read(100_000)))
    if make not in (empty, zeros, nested):  # a plain file is a damaged one, whatever it holds
        assert f"file-{0:024x}" not in service.files


FILES = [*SAID["files"], {"filename": "x" * 100_000}, {"more": json.loads(DEEP)}]
TORN = ("[]", "5", "null", '"x"', DEEP, "{", "")


def test_a_description_that_no_server_writes_costs_a_file_its_name_only(tmp_path):
    place = tmp_path / FILE
    place.mkdir()
    (place / "content").write_text("{}")
    usual = {"id": FILE, "filename": "in", "purpose": "batch", "bytes": 2, "created": 1.7e9}
    for text in (*(json.dumps({**usual, **said}) for said in FILES), *TORN):
        (place / "meta.json").write_text(text)
        [file] = Files(tmp_path).all()
        json.dumps(file.as_json(), ensure_ascii=False, allow_nan=False).encode()
        assert (file.purpose, file.bytes) == ("batch", 2)
        assert len(file.filename) < 1000
        assert text not in TORN or file.filename == f"{FILE}.jsonl"


@pytest.mark.parametrize("called", ["\ud800.jsonl", "a\nb\x1b[31m", "x" * 5000, "\u202egnp.exe"])
def test_what_a_file_is_called_can_be_told(tmp_path, called):
    new = Files(tmp_path).begin()
    new.write(b"x")
    new.keep(called, BATCH_INPUT)
    [file] = Files(tmp_path).all()
    assert file.filename.isprintable()
    assert 1 <= len(file.filename) <= 512
    assert json.loads((tmp_path / new.id / "meta.json").read_text())["filename"] == file.filename


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "\ud800"},
        {"model": "x" * 100_000},
        {"metadata": {"a": "\udfff"}},
        {"metadata": {str(i): "x" for i in range(1000)}},
        {"errors": (BatchError("x", "\ud800", None, None),)},
        {"errors": (BatchError("x", "x", None, None),) * 10_000},
        {"counts": BatchCounts(-1, 0, 0)},
        {"created": float("nan")},
        {"output_file_id": "../x"},
        {"status": "in_progress", "model": None},
    ],
)
def test_nothing_is_written_that_could_not_be_read(tmp_path, changes):
    """Even where a check before it was forgotten."""
    place = tmp_path / name(1)
    place.mkdir()
    write_record(place, good(1))
    with pytest.raises(ValueError, match=r"."):
        write_record(place, good(1, **changes))
    assert read_record(place) == good(1)
    assert [path.name for path in place.iterdir()] == [RECORD]


def test_a_link_is_not_written_through(tmp_path):
    place, victim = tmp_path / name(1), tmp_path / "victim"
    place.mkdir()
    victim.write_text("dear")
    (place / f"{RECORD}.partial").symlink_to(victim)
    (place / RECORD).symlink_to(victim)
    write_record(place, good(1))
    assert victim.read_text() == "dear"
    assert read_record(place) == good(1)


def project(folder: Path) -> Path:
    """Somebody's folder, whose names look like those of a server."""
    for path in ("files/.git/config", "batches/.venv/bin/python", "batches/.env/x", "files/.x/y"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("mine")
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_only_what_a_server_left_unfinished_is_removed(tmp_path):
    from app.serve.batches.folder import BATCH_ID, FILE_ID

    project(tmp_path)
    before = content_of(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("mine")
    for place, own, kind in (("files", FILE_ID, "file-"), ("batches", BATCH_ID, "batch_")):
        folder = tmp_path / place
        (folder / f".{kind}{'a' * 24}").mkdir()
        (folder / f".{kind}{'a' * 24}" / "content").write_text("half")
        for left in ("0", "A" * 24, "a" * 23, "a" * 25, "a" * 24 + ".old", "g" * 24):
            (folder / f".{kind}{left}").mkdir()
        (folder / f".{kind}{'b' * 24}").symlink_to(outside, target_is_directory=True)
        (folder / f".{kind}{'c' * 24}").write_text("a file")
        (folder / f"{kind}{'d' * 24}").symlink_to(outside, target_is_directory=True)
        (folder / f"{kind}{'e' * 24}").mkdir()
        left = {path.name for path in folder.iterdir()} - {f".{kind}{'a' * 24}"}
        assert [path.name for path in prepare(folder, own)] == [f"{kind}{'e' * 24}"]
        assert {path.name for path in folder.iterdir()} == left
    assert before.items() <= content_of(tmp_path).items()
    assert (outside / "x").read_text() == "mine"


def test_a_link_to_a_folder_is_no_batch(tmp_path):
    """Its record would say that it has ended, and what lies beside that would be removed."""
    outside = tmp_path / "outside"
    place = put(outside, good(1))
    (place / "letter").write_text("dear")
    (place / "input.jsonl").write_text("dear")
    data = tmp_path / "data"
    put(data / "batches", good(2))
    (data / "batches" / name(1)).symlink_to(place, target_is_directory=True)
    service = service_of(data)
    assert listed(service) == {name(2): "completed"}
    assert (place / "letter").read_text() == (place / "input.jsonl").read_text() == "dear"


def test_what_others_put_beside_an_ended_batch_stays(tmp_path):
    place = put(tmp_path, good(1))
    for file in ("input.jsonl", "out.jsonl.journal.jsonl", f"{RECORD}.partial", "notes"):
        (place / file).write_text("x")
    (place / "sub").mkdir()
    (place / "sub" / "y").write_text("x")
    Batches(tmp_path)
    assert {path.name for path in place.iterdir()} == {RECORD, "notes", "sub"}
    assert (place / "sub" / "y").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    project(tmp_path / "project")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis\x1b[31m.txt").write_text("mine")
    for where in ("project", "other"):
        folder, before = tmp_path / where, content_of(tmp_path)
        refused = pytest.raises(RequestError, match=r"no data folder.* --data")
        with refused as error, claimed(folder):
            pass
        assert str(error.value).isprintable()
        assert content_of(tmp_path) == before
        assert len(list(folder.iterdir())) == {"project": 2, "other": 1}[where]


def test_links_in_the_place_of_its_folders_are_refused(tmp_path):
    outside, data = tmp_path / "outside", tmp_path / "data"
    (outside / f".{FILE}").mkdir(parents=True)
    put(data / "batches", good(1))
    (data / "files").symlink_to(outside, target_is_directory=True)
    with pytest.raises(RequestError, match="is a link"), claimed(data) as folder:
        service_of(folder)
    assert (outside / f".{FILE}").exists()
    shutil.rmtree(data)


@pytest.mark.parametrize("make", [pipe, empty, gone, linked])
def test_what_is_no_folder_is_told(tmp_path, make):
    make(tmp_path / "data")
    with pytest.raises(RequestError, match="data"), claimed(tmp_path / "data"):
        pass


def test_results_are_what_a_server_made(tmp_path):
    """Nothing that a record names is overwritten."""
    files = Files(tmp_path)
    new = files.begin()
    new.keep("a", OUTPUT)
    again = files.begin(new.id)
    again.write(b"x" * 10)
    with pytest.raises(RequestError):
        again.keep("b", OUTPUT)
    again.drop()
    [file] = Files(tmp_path).all()
    assert (file.filename, file.bytes) == ("a", 0)
