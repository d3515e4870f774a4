"""Files that Ingot wrote and reads again, changed in between: journals, manifests, the library's
records, plans and other state, settings, sessions, a server's records."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from app.batch.journal.journal import Journal, Matcher, journal_path
from app.batch.journal.lines import read_state
from app.batch.output.merge import merge
from app.batch.report.figures import status_of
from app.batch.watch.follow import FollowedJournal
from app.batch.watch.form import presets
from app.batch.watch.job import attach
from app.batch.watch.records import known_jobs, last_run
from app.batch.watch.rows import Rows
from app.chat.load_settings import remembered
from app.compare.report import ballot_of, read_report
from app.config.files import load
from app.models import library
from app.models.catalog import catalog
from app.models.library import recently_used
from app.openai.answer import Answer
from app.openai.validation import Problem
from app.serve.batches.store import Batch, BatchError, Batches, Files, write_record
from quantize.manifest import entry_path, load_manifest
from quantize.stages import Stages
from runtimes.engine.session import read_session, session_tokens, write_session
from runtimes.errors import IngotError
from runtimes.machine.selftest import remembered as health
from runtimes.planner.known import made_plans
from runtimes.worker.recovery import limit_lines
from tests.fuzz.cases import Case, built, loop
from tests.fuzz.commands import ingot
from tests.fuzz.mutate import CORPUS, TEXTS, damaged, dumped, mutated, strange

_HEADER = {"model": "a" * 64, "runtime": "llamacpp", "library": "1", "kv_type": "f16"}
_USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
_ANSWERS = (
    Answer(response="Paris", finish_reason="stop", usage=_USAGE, created=1e9),
    Answer(error=Problem("invalid_value", "no"), partial="Par"),
    Answer(response="x", responses=["x", "y"], logprobs=[{"token": "x", "logprob": -1.0}]),
)
_GOOD: dict[str, Any] = json.loads((CORPUS / "files.json").read_bytes())
_SETTINGS, _RUN = _GOOD["journal-settings"], _GOOD["journal-run"]


def changed(value: Any, case: Case) -> bytes:
    """A JSON file with something wrong: in its values mostly, else in its bytes."""
    random = case.random
    said = strange(random) if random.random() < 0.05 else mutated(value, random, [value])
    data = dumped(said, random)
    return damaged(data, random) if random.random() < 0.25 else data


# Journals


def a_journal(case: Case) -> None:
    out = case.folder / "out.jsonl"
    path = journal_path(out)
    with Journal(path) as journal:
        journal.begin(_SETTINGS)
        journal.note("batch-run", _RUN)
        for index in range(6):
            journal.append(bytes([index]) * 16, index, _ANSWERS[index % len(_ANSWERS)])
        journal.note("batch-end", {"at": 1e9 + 5, "unfinished": 0})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(_wrong_lines(lines, case.random))
    before = path.read_bytes()
    with contextlib.suppress(IngotError), Journal(path) as journal:
        matcher = Matcher(journal.entries)
        for index in range(6):
            key = bytes([index]) * 16
            offset = matcher.take(key)
            if offset is not None:
                with contextlib.suppress(IngotError):
                    journal.read(offset, key).lasting().to_json()
        assert path.read_bytes() == before or not before
        journal.begin({**_SETTINGS, "model": "other"})
    for read in (read_state, last_run):
        with contextlib.suppress(IngotError):
            read(path)
    with contextlib.suppress(IngotError):
        "\n".join(status_of(out).lines()) + json.dumps(status_of(out).as_json())
    followed = FollowedJournal(path, Rows())
    while followed.read():
        pass
    for index in range(6):
        followed.answer(index)
    with contextlib.suppress(IngotError):
        (followed.command and followed.command.asked(), attach(out).poll(), attach(out).view())
    with contextlib.suppress(IngotError):
        merge(case.folder / "merged.jsonl", [out])
    if case.random.random() < 0.1:
        ingot(case, "batch", "status", out, *case.random.choice(((), ("--json",))))


def _wrong_lines(lines: list[bytes], random: Random) -> bytes:
    if random.random() < 0.2:
        return damaged(b"".join(lines), random)
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(lines))
        with contextlib.suppress(ValueError, RecursionError):  # it was changed already
            said = json.loads(lines[at])
            del said["crc"]
            lines[at] = _sealed(dumped(mutated(said, random, [_RUN, _SETTINGS]), random))
    match random.randrange(5):
        case 0:
            random.shuffle(lines)
        case 1:
            lines.insert(random.randrange(len(lines)), random.choice(lines))
        case 2:
            del lines[random.randrange(len(lines))]
    return b"".join(lines)


def _sealed(line: bytes) -> bytes:
    body = line.removesuffix(b"}")
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


# Models


def a_manifest(case: Case) -> None:
    good = json.loads((built() / "manifest.json").read_bytes())
    good["files"] = [dict(case.random.choice(good["files"]))]
    (case.folder / "model").mkdir()
    case.write("model/manifest.json", changed(good, case))
    with contextlib.suppress(IngotError):
        for entry in load_manifest(case.folder / "model").files:
            with contextlib.suppress(IngotError):
                entry_path(case.folder / "model", entry)
    for entry in catalog([case.folder / "model"]):
        repr(entry)
    ingot(case, *case.random.choice((("plan",), ("doctor", "--checksums"))), case.folder / "model")


def a_library(case: Case) -> None:
    case.write("data/models/org/name/library.json", changed(_GOOD["library"], case))
    case.write("data/models/org/name/x.gguf", b"GGUF")
    for model in library.models():
        repr((model, [model.is_whole(build) for build in model.builds]))
    for text in ("name", "org/name:Q8_0", "name:x"):
        with contextlib.suppress(IngotError):
            library.locate(text)
    repr(catalog())
    ingot(case, "models", *case.random.choice(((), ("--json",))))
    if case.random.random() < 0.3:
        ingot(case, "rm", case.random.choice(("name", "name:Q8_0", "org/name")), "--yes")


def a_state(case: Case) -> None:
    for name, value in _GOOD["state"].items():
        case.write(f"state/{name}.json", changed(value, case))
    repr((made_plans(), recently_used(), limit_lines(), health("llamacpp"), health("onnx")))
    repr((remembered(Path("/x.gguf")), catalog()))


def a_job(case: Case) -> None:
    case.write("config/batch-presets.json", changed(_GOOD["presets"], case))
    case.write("state/jobs/0123456789abcdef/record.json", changed(_GOOD["job"], case))
    repr(presets(case.folder))
    repr(known_jobs())


def a_report(case: Case) -> None:
    folder = case.write("report/results.json", changed(_GOOD["report"], case)).parent
    case.write("report/votes.jsonl", changed({"key": "x", "vote": "first"}, case))
    with contextlib.suppress(IngotError):
        results = read_report(folder)
        repr(ballot_of(results, folder).pairs)


def stages(case: Case) -> None:
    case.write("work/stages/imatrix-ab/stage.json", changed(_GOOD["stage"], case))
    with contextlib.suppress(IngotError):
        Stages(case.folder / "work" / "stages", "me").find("imatrix", "ab")


# Settings, sessions


def settings(case: Case) -> None:
    random, data = case.random, (CORPUS / "config.toml").read_text()
    if random.random() < 0.7:
        lines = data.splitlines()
        at = random.randrange(len(lines))
        key = lines[at].partition(" = ")[0]
        value = random.choice(
            (json.dumps(strange(random))[:70_000], "nan", "1979-05-27", "[" * 2000)
        )
        lines[at] = random.choice(
            (f"{key} = {value}", lines[at] + random.choice(TEXTS), "[a.b.c]", "")
        )
        data = "\n".join(lines)
    raw = data.encode("utf-8", "surrogatepass")
    path = case.write("config/config.toml", damaged(raw, random) if random.random() < 0.4 else raw)
    load(path)
    command = random.choice((["config"], ["config", "--json"], ["config", "get", "chat.model"]))
    if random.random() < 0.3:
        command = ["config", "set", "sampling.temperature", random.choice(("0.3", "x", "\udc80"))]
    with mock.patch.dict(os.environ, {"INGOT_CONFIG": str(path)}):
        ingot(case, *command)


def a_session(case: Case) -> None:
    path = case.folder / "a.prefix"
    write_session(path, _HEADER, list(range(100)), b"payload" * 50)
    data, random = path.read_bytes(), case.random
    if random.random() < 0.5:
        line, _, payload = data.partition(b"\n")
        fields = mutated(json.loads(line), random)
        crc = isinstance(fields, dict) and "crc32" in fields
        if crc and random.random() < 0.7:
            with contextlib.suppress(TypeError, ValueError):
                del fields["crc32"]
                whole = zlib.crc32(json.dumps(fields).encode())
                fields["crc32"] = zlib.crc32(payload, whole)
        path.write_bytes(dumped(fields, random) + b"\n" + payload)
    else:
        path.write_bytes(damaged(data, random))
    with contextlib.suppress(IngotError):
        session_tokens(path)
    with contextlib.suppress(IngotError):
        read_session(path, _HEADER)


# A server's data


def a_server(case: Case) -> None:
    """The folders of files and batches, as a server reads them when it begins."""
    random = case.random
    name = "batch_" + "0a" * 12
    errors = (BatchError("waiting", "no room", 1, "x"),)
    batch = Batch(name, 1e9, "/v1/completions", "file-" + "0c" * 12, {"a": "b"}, errors=errors)
    folder = case.folder / "batches" / name
    folder.mkdir(parents=True)
    write_record(folder, batch)
    data = (folder / "batch.json").read_bytes()
    said = json.loads(data)
    del said["crc"]
    data = (
        _sealed(dumped(mutated(said, random), random))
        if random.random() < 0.7
        else damaged(data, random)
    )
    (folder / "batch.json").write_bytes(data)
    case.write(f"batches/{name}/{random.choice(('sub/x', '.git', 'input.jsonl'))}", b"x")
    case.write("files/file-" + "0b" * 12 + "/content", b"rows")
    case.write("files/file-" + "0b" * 12 + "/meta.json", changed(_GOOD["meta"], case))
    case.write("files/.git/config", b"mine")
    for one in (*Batches(case.folder / "batches").all(), *Files(case.folder / "files").all()):
        json.dumps(one.as_json(), ensure_ascii=False, allow_nan=False).encode()
    assert (case.folder / "files" / ".git" / "config").read_bytes() == b"mine"


_TARGETS: tuple[Callable[[Case], None], ...] = (
    a_journal, a_manifest, a_library, a_state, a_job, a_report, stages, settings, a_session,
    a_server,
)  # fmt: skip


def one(case: Case) -> None:
    with mock.patch.dict(os.environ, {"INGOT_HOME": str(case.folder)}):
        target = case.random.choice(_TARGETS)
        case.figures[target.__name__] += 1
        target(case)


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    return loop("kept", one, seconds, seed, count)
