"""Real runs of quantize, from a half-precision GGUF file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.builds.child import MeltProcess
from app.builds.forecast import foresee
from app.builds.progress import State
from app.builds.results import read_result
from app.builds.settings import Settings
from quantize.errors import UsageError
from tests.app import stopping


def follow(process: MeltProcess, until: Callable[[], bool] = lambda: False) -> None:
    """Poll as a screen does, until the end or ``until()``."""
    limit = time.monotonic() + 120
    while process.poll() and not until():
        assert time.monotonic() < limit, process.melt
        time.sleep(0.01)


@pytest.fixture
def settings(float_gguf: Path, tmp_path: Path) -> Settings:
    return Settings(str(float_gguf), ("q8_0", "q4_0"), out=str(tmp_path / "out"), measure=False)


@pytest.fixture
def held(settings: Settings, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No q4_0 is made until this is undone."""
    built = Path(settings.out) / "pebble-q8_0.gguf"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stopping.before_quantizing(tmp_path / "held", built).items():
            patch.setenv(name, value)
        yield patch


def test_a_stopped_run_goes_on_from_what_is_finished(
    settings: Settings, held: pytest.MonkeyPatch
) -> None:
    process = MeltProcess(settings)
    follow(process, lambda: "q8_0" in process.melt.files)
    process.stop()
    follow(process)
    assert process.melt.state is State.STOPPED
    assert process.melt.state_of("q4_0") is State.STOPPED
    out = Path(settings.out)
    first = (out / "pebble-q8_0.gguf").stat().st_mtime_ns

    held.undo()
    again = MeltProcess(settings)
    follow(again)
    assert again.melt.state is State.DONE, (again.melt, again.last_words)
    assert again.melt.already == {"q8_0"}
    assert set(again.melt.files) == {"q4_0"}
    assert (out / "pebble-q8_0.gguf").stat().st_mtime_ns == first
    assert again.melt.manifest == out / "manifest.json"
    assert any(stage.recipe == "q4_0" and stage.seconds for stage in again.melt.stages)

    result = read_result(out)
    assert [(row.recipe, row.path.is_file()) for row in result.rows] == [
        ("q4_0", True),
        ("q8_0", True),
    ]
    assert result.headings == ("MB", "bits")
    assert result.report == out / "report.html"


@pytest.mark.parametrize("words", ["no config.json", "cut"])
def test_a_run_that_fails_says_why(words: str, float_gguf: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    if words == "cut":
        model = tmp_path / "cut.gguf"
        model.write_bytes(float_gguf.read_bytes()[:100_000])
    else:
        model.mkdir()
    process = MeltProcess(Settings(str(model), ("q8_0",), measure=False))
    follow(process)
    assert process.melt.state is State.FAILED
    assert words in process.melt.error
    assert process.melt.exit_code in (2, 3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_told_before_and_by_the_run(
    settings: Settings, small_disk: Path
) -> None:
    settings = replace(settings, out=str(small_disk / "out"))
    (problem,) = foresee(settings).problems
    process = MeltProcess(settings)
    follow(process)
    assert (process.melt.state, process.melt.exit_code) == (State.FAILED, 4)
    assert process.melt.error == problem
    assert "free to build in" in problem
    assert "--out" in problem


@pytest.mark.usefixtures("held")
def test_a_run_that_is_killed_says_so(settings: Settings) -> None:
    process = MeltProcess(settings)
    os.kill(process.pid, signal.SIGKILL)
    follow(process)
    assert process.melt.state is State.FAILED
    assert "killed (signal 9)" in process.melt.error


def test_one_that_cannot_be_written_down_is_not_started() -> None:
    with pytest.raises(UsageError, match="did you mean"):
        MeltProcess(Settings("org/name", ("q4_k_n",)))


@pytest.mark.usefixtures("held")
def test_stopping_works_where_interrupts_are_ignored(settings: Settings) -> None:
    """A shell starts background jobs so, and children inherit it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = MeltProcess(settings)
    finally:
        signal.signal(signal.SIGINT, before)
    follow(process, lambda: bool(process.melt.stages))
    process.stop()
    process.stop()
    follow(process)
    assert process.melt.state is State.STOPPED
