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
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from app.models.library import load_engine, model_file
from app.models.prefixes import SavedPrefixes
from app.options import ModelOptions
from runtimes.request import Request, SamplingParams
from runtimes.settings import KvType, RunnerSettings, SchedulerSettings
from runtimes.worker.engine import WorkerEngine

ROOM = 10**9
TEXT = "You answer questions about the cities of the world. " * 12
QUESTION = "What is the capital of France?"


@contextmanager
def engine(model: Path, kv_type: KvType = "f16") -> Iterator[tuple[WorkerEngine, RunnerSettings]]:
    """One in a process of its own, and its settings."""
    settings = RunnerSettings(slots=2, context=1024, threads=1, kv_type=kv_type)
    with load_engine(
        model_file(str(model), ModelOptions()), settings, SchedulerSettings()
    ) as loaded:
        yield loaded, settings


def read(loaded: WorkerEngine, prompt: list[int]) -> int:
    """Have it answered; how many of its tokens were cached."""
    request = Request(prompt, SamplingParams(max_tokens=1))
    return loaded.submit(request).result().usage.cached_tokens


def test_what_another_process_saves_meanwhile_is_used(gguf_file: Path, tmp_path: Path) -> None:
    mine, theirs = (SavedPrefixes(tmp_path / "saved", ROOM, worth_s=0) for _ in range(2))
    with engine(gguf_file) as (first, settings), engine(gguf_file) as (second, _):
        beginning = first.encode(TEXT)
        prompt = first.encode(TEXT + QUESTION)
        mine.before(first, settings, prompt)  # there is nothing yet
        read(second, beginning)
        theirs.keep(second, settings, beginning)
        mine.before(first, settings, prompt)
        assert read(first, prompt) >= len(beginning) - 2


def test_types_of_keys_and_values_do_not_use_or_remove_each_others(
    gguf_file: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    for count, kv_type in enumerate(("f16", "q8_0")):
        with engine(gguf_file, kv_type) as (loaded, settings):
            prefixes = SavedPrefixes(saved, ROOM, worth_s=0)
            prompt = loaded.encode(TEXT)
            prefixes.before(loaded, settings, prompt)
            assert read(loaded, prompt) == 0
            prefixes.keep(loaded, settings, prompt)
            assert len(list(saved.iterdir())) == count + 1


def test_what_is_saved_already_is_not_saved_again(gguf_file: Path, tmp_path: Path) -> None:
    prefixes = SavedPrefixes(tmp_path / "saved", ROOM, worth_s=0)
    with engine(gguf_file) as (loaded, settings):
        prompt = loaded.encode(TEXT)
        read(loaded, prompt)
        prefixes.keep(loaded, settings, prompt)
        [file] = prefixes.folder.iterdir()
        before = file.stat()
        prefixes.keep(loaded, settings, prompt[:-9])
        assert [file.stat()] == [before]
        longer = loaded.encode(TEXT + QUESTION)  # as a chat that goes on
        read(loaded, longer)
        prefixes.keep(loaded, settings, longer)
        [other] = prefixes.folder.iterdir()
        assert other != file


def test_two_that_save_at_once_leave_whole_files_within_the_budget(
    gguf_file: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with engine(gguf_file) as (first, settings), engine(gguf_file) as (second, _):
        prompts = [first.encode(f"Number {number}. {TEXT}") for number in range(16)]
        read(first, prompts[0])
        SavedPrefixes(saved, ROOM, worth_s=0).keep(first, settings, prompts[0])
        room = 4 * max(file.stat().st_size for file in saved.iterdir())
        over = threading.Event()
        damaged = []

        def work(loaded: WorkerEngine, own: list[list[int]]) -> None:
            prefixes = SavedPrefixes(saved, room, worth_s=0)
            for prompt in own:
                prefixes.before(loaded, settings, prompt)
                read(loaded, prompt)
                prefixes.keep(loaded, settings, prompt)

        def watch() -> None:
            while not over.wait(0.001):
                for file in saved.glob("[!.]*.prefix"):
                    with suppress(FileNotFoundError):
                        head, data = file.read_bytes().split(b"\n", 1)
                        told = json.loads(head)
                        crc = told.pop("crc32")
                        if zlib.crc32(data, zlib.crc32(json.dumps(told).encode())) != crc:
                            damaged.append(file)

        with ThreadPoolExecutor(3) as threads:
            watching = threads.submit(watch)
            pairs = ((first, prompts[:8]), (second, prompts[8:]))
            working = [threads.submit(work, *pair) for pair in pairs]
            try:
                for one in working:
                    one.result()
            finally:
                over.set()
            watching.result()
        assert not damaged
        SavedPrefixes(saved, room).prune()  # the last two may have looked at the same moment
        files = list(saved.iterdir())
        assert files
        assert all(file.suffix == ".prefix" for file in files)
        assert sum(file.stat().st_size for file in files) <= room
        assert first.deaths == second.deaths == 0


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
def test_a_full_disk_is_told_once(
    gguf_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No file of the engine's process may be longer than this: as if there were no more room."""
    prefixes = SavedPrefixes(tmp_path / "saved", ROOM, worth_s=0)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with engine(gguf_file) as (loaded, settings):
        assert loaded.pid is not None
        prompt = loaded.encode(TEXT)
        read(loaded, prompt)
        resource.prlimit(loaded.pid, resource.RLIMIT_FSIZE, (4096, hard))
        prefixes.keep(loaded, settings, prompt)
        prefixes.keep(loaded, settings, prompt)
        assert read(loaded, prompt) > 0
        assert loaded.deaths == 0
    told = [one for one in caplog.records if one.levelname == "WARNING"]
    assert len(told) == 1
    assert "not saved" in told[0].getMessage()
    assert not list(prefixes.folder.iterdir())


def test_a_folder_that_cannot_be_written_is_told_once(
    gguf_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefixes = SavedPrefixes(tmp_path / "blocked", ROOM, worth_s=0)
    prefixes.folder.write_text("a file where the folder should be")
    with engine(gguf_file) as (loaded, settings):
        prompt = loaded.encode(TEXT)
        for _ in range(2):
            prefixes.before(loaded, settings, prompt)
            read(loaded, prompt)
            prefixes.keep(loaded, settings, prompt)
    assert [one.levelname for one in caplog.records].count("WARNING") == 1


def test_the_oldest_go_first(tmp_path: Path) -> None:
    """Also what a process that was killed has left half written."""
    now = time.time()
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
    SavedPrefixes(tmp_path, ROOM).prune()
    assert {file.name for file in tmp_path.iterdir()} == {"new.prefix", "foreign.txt"}


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path) -> None:
    """A folder that is called as a file is, and is older than the others."""
    (tmp_path / "a.prefix" / "full").mkdir(parents=True)
    for name in ("b", "c"):
        (tmp_path / f"{name}.prefix").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{name}.prefix", (0, 0))
    os.utime(tmp_path / "a.prefix", (1, 1))
    SavedPrefixes(tmp_path, 1000).prune()
    assert [path.name for path in tmp_path.iterdir()] == ["a.prefix"]
