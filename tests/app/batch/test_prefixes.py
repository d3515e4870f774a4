"""What the rows of a job begin with, on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.batch.schedule.pool_engine import Beginning
from app.models.prefixes import SavedPrefixes
from runtimes.settings import RunnerSettings
from tests.support import questions, read_rows, write_rows

SYSTEM = "You answer questions about the cities of the world. " * 12
WORDS = ["--max-tokens", "4", "--quiet", "--threads", "1", "--system", SYSTEM]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jobs of this process save what they read, however soon that is done."""
    folder = tmp_path / "saved"
    monkeypatch.setattr(
        "app.batch.run.shared_prefixes", lambda: SavedPrefixes(folder, 10**9, worth_s=0)
    )
    return folder


@pytest.fixture(params=["gguf_file", "onnx_folder"])
def model(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def cached(out: Path) -> list[int]:
    return [record["usage"]["cached_tokens"] for record in read_rows(out)]


def test_it_is_saved_once_and_resuming_uses_it(
    command: Any, model: Path, saved: Path, tmp_path: Path
) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(12)), tmp_path / "out.jsonl"
    job = ["batch", rows, out, "--model", model, *WORDS]
    assert command(*job, "--limit", "6").returncode == 0
    [file] = saved.iterdir()
    before = file.stat()
    assert before.st_mode & 0o077 == saved.stat().st_mode & 0o077 == 0
    assert min(cached(out)) < 64  # one row has read it
    assert command(*job).returncode == 0
    assert min(cached(out)[6:]) > 100
    [same] = saved.iterdir()
    # The rows of the second run may begin alike a token or two longer.
    assert abs(same.stat().st_size - before.st_size) < before.st_size / 20


def test_one_row_or_no_beginning_saves_nothing(
    command: Any, gguf_file: Path, saved: Path, tmp_path: Path
) -> None:
    rows, out = write_rows(tmp_path / "in.jsonl", questions(12)), tmp_path / "out.jsonl"
    job = ["batch", rows, out, "--model", gguf_file]
    assert command(*job, *WORDS, "--limit", "1").returncode == 0
    assert command(*job, *WORDS[:-2], "--fresh").returncode == 0
    assert command(*job, *WORDS, "--reproducible", "--fresh").returncode == 0
    assert not saved.exists()


def test_rows_that_begin_alike_look_once_for_a_process() -> None:
    looked: list[list[int]] = []

    class Looks:
        def before(self, engine: Any, settings: Any, prompt: list[int]) -> None:
            looked.append(prompt)

    class Engine:
        pid = 1

    engine, alike = Engine(), list(range(100))
    beginning = Beginning(Looks(), engine, RunnerSettings())  # type: ignore[arg-type]
    for last in range(3):
        beginning.before([*alike, last])
    assert looked == [[*alike, 0]]
    beginning.before([7] * 100)
    engine.pid = 2
    beginning.before([*alike, 9])
    beginning.before([*alike, 8])
    assert looked[1:] == [[7] * 100, [*alike, 9]]
