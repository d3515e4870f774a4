"""Beginnings of prompts on disk, as engines of several processes share them."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.models.prefixes import SavedPrefixes
from runtimes.request import Request, SamplingParams
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine

ROOM = 10**9
TEXT = "You answer questions about the cities of the world. " * 12
SETTINGS = RunnerSettings(slots=2, context=1024, threads=1)


@pytest.fixture(scope="module")
def engines(gguf_file: Path) -> Iterator[tuple[WorkerEngine, WorkerEngine]]:
    """Two processes. What one test has them read begins otherwise in each."""
    with (
        WorkerEngine.load(gguf_file, SETTINGS) as first,
        WorkerEngine.load(gguf_file, SETTINGS) as second,
    ):
        yield first, second
        assert first.deaths == second.deaths == 0


@pytest.fixture
def prefixes(tmp_path: Path) -> SavedPrefixes:
    return SavedPrefixes(tmp_path / "saved", ROOM, worth_s=0)


def read(loaded: WorkerEngine, prompt: list[int]) -> int:
    """Have it answered; how many of its tokens were cached."""
    request = Request(prompt, SamplingParams(max_tokens=1))
    return loaded.submit(request).result().usage.cached_tokens


def test_what_another_process_saves_meanwhile_is_used(
    engines: tuple[WorkerEngine, WorkerEngine], prefixes: SavedPrefixes
) -> None:
    first, second = engines
    theirs = SavedPrefixes(prefixes.folder, ROOM, worth_s=0)
    beginning = first.encode(f"One. {TEXT}")
    prompt = first.encode(f"One. {TEXT}What is the capital of France?")
    prefixes.before(first, SETTINGS, prompt)  # there is nothing yet
    read(second, beginning)
    theirs.keep(second, SETTINGS, beginning)
    prefixes.before(first, SETTINGS, prompt)
    assert read(first, prompt) >= len(beginning) - 2
    [file] = prefixes.folder.iterdir()
    before = file.stat()
    theirs.keep(second, SETTINGS, beginning[:-9])  # which is saved already
    assert [file.stat()] == [before]
    theirs.keep(second, SETTINGS, prompt)  # which this process never had
    read(second, prompt)
    theirs.keep(second, SETTINGS, prompt)  # as a chat that goes on
    [longer] = prefixes.folder.iterdir()
    assert longer != file


def test_a_damaged_file_and_one_of_other_keys_and_values_are_not_used(
    engines: tuple[WorkerEngine, WorkerEngine], gguf_file: Path, prefixes: SavedPrefixes
) -> None:
    small = replace(SETTINGS, kv_type="q8_0")
    with WorkerEngine.load(gguf_file, small) as other:
        for count, (loaded, settings) in enumerate(((engines[0], SETTINGS), (other, small))):
            prompt = loaded.encode(f"Types. {TEXT}")
            prefixes.before(loaded, settings, prompt)
            assert read(loaded, prompt) <= 1
            prefixes.keep(loaded, settings, prompt)
            assert len(list(prefixes.folder.iterdir())) == count + 1
    for file in prefixes.folder.iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    anew = SavedPrefixes(prefixes.folder, ROOM, worth_s=0)
    anew.before(engines[1], SETTINGS, prompt)
    assert read(engines[1], prompt) <= 1
    assert len(list(prefixes.folder.iterdir())) == 1  # the other is nobody's here


def test_two_that_save_at_once_leave_whole_files_within_the_budget(
    engines: tuple[WorkerEngine, WorkerEngine], prefixes: SavedPrefixes
) -> None:
    prompts = [engines[0].encode(f"Number {number}. {TEXT}") for number in range(10)]
    read(engines[0], prompts[0])
    prefixes.keep(engines[0], SETTINGS, prompts[0])
    room = 3 * max(file.stat().st_size for file in prefixes.folder.iterdir())
    over = threading.Event()
    halves, damaged = (prompts[:5], prompts[5:]), []

    def work(loaded: WorkerEngine, own: list[list[int]]) -> None:
        mine = SavedPrefixes(prefixes.folder, room, worth_s=0)
        for prompt in own:
            mine.before(loaded, SETTINGS, prompt)
            read(loaded, prompt)
            mine.keep(loaded, SETTINGS, prompt)

    def watch() -> None:
        while not over.wait(0.001):
            for file in prefixes.folder.glob("[!.]*.prefix"):
                with suppress(FileNotFoundError):
                    head, data = file.read_bytes().split(b"\n", 1)
                    told = json.loads(head)
                    crc = told.pop("crc32")
                    if zlib.crc32(data, zlib.crc32(json.dumps(told).encode())) != crc:
                        damaged.append(file)

    with ThreadPoolExecutor(3) as threads:
        watching = threads.submit(watch)
        working = [threads.submit(work, *one) for one in zip(engines, halves, strict=True)]
        try:
            for one in working:
                one.result()
        finally:
            over.set()
        watching.result()
    assert not damaged
    SavedPrefixes(prefixes.folder, room).prune()  # the last two may have looked at once
    files = list(prefixes.folder.iterdir())
    assert files
    assert all(file.suffix == ".prefix" for file in files)
    assert sum(file.stat().st_size for file in files) <= room


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_or_a_folder_that_cannot_be_written_is_told_once(
    engines: tuple[WorkerEngine, WorkerEngine],
    prefixes: SavedPrefixes,
    caplog: pytest.LogCaptureFixture,
    full: bool,
) -> None:
    """No file of the engine's process may be longer than this: as if there were no more room."""
    loaded = engines[0]
    assert loaded.pid is not None
    before = resource.prlimit(loaded.pid, resource.RLIMIT_FSIZE)
    prompt = loaded.encode(f"Full {full}. {TEXT}")
    read(loaded, prompt)
    if full:
        resource.prlimit(loaded.pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    else:
        prefixes.folder.write_text("a file where the folder should be")
    try:
        for _ in range(2):
            prefixes.before(loaded, SETTINGS, prompt)
            prefixes.keep(loaded, SETTINGS, prompt)
            assert read(loaded, prompt) > 0
    finally:
        resource.prlimit(loaded.pid, resource.RLIMIT_FSIZE, before)
    [told] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "not saved" in told
    assert not full or not list(prefixes.folder.iterdir())


def test_the_oldest_go_first(tmp_path: Path) -> None:
    """Also what a process that was killed has left half written, and past a folder that is called
    as a file is."""
    now = time.time()
    (tmp_path / "stays.prefix" / "full").mkdir(parents=True)
    for name, age_days, size in (
        ("new.prefix", 1, 100),
        (".half.prefix.x7", 3, 100),
        ("large.prefix", 2, ROOM),
        ("old.prefix", 40, 100),
        ("foreign.txt", 50, 100),
    ):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
        os.utime(tmp_path / name, (now - 86400 * age_days,) * 2)
    os.utime(tmp_path / "stays.prefix", (now - 86400 * 35,) * 2)
    SavedPrefixes(tmp_path, ROOM).prune()
    there = {file.name for file in tmp_path.iterdir()}
    assert there == {"new.prefix", "foreign.txt", "stays.prefix"}
