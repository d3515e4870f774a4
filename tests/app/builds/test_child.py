"""Real runs of quantize, from a half-precision GGUF file."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.builds.prospects import foresee
from app.builds.results import read_result
from app.builds.run import QuantizeProcess, RunState
from app.builds.settings import Settings
from quantize.errors import UsageError
from tests.app import stopping
from tests.support import until


def follow(process: QuantizeProcess, enough: Callable[[], bool] = lambda: False) -> None:
    """Poll as a screen does, until the end or ``enough()``."""
    until(lambda: not process.poll() or enough())


@pytest.fixture
def settings(float_gguf: Path, tmp_path: Path) -> Settings:
    return Settings(str(float_gguf), ("q8_0", "q4_0"), out=str(tmp_path / "out"), measure=False)


@pytest.fixture
def held(settings: Settings, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No q4_0 is made until this is undone: its quantizer stops itself."""
    built = Path(settings.out) / "pebble-q8_0.gguf"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stopping.before_quantizing(tmp_path / "held", built).items():
            patch.setenv(name, value)
        yield patch


def test_a_stopped_run_goes_on_from_what_is_finished(
    settings: Settings, held: pytest.MonkeyPatch
) -> None:
    process = QuantizeProcess(settings)
    follow(process, lambda: "q8_0" in process.run.files)
    until(lambda: stopping.waiting(process.pid))
    process.stop()
    follow(process)
    assert process.run.state is RunState.STOPPED
    assert process.run.state_of("q4_0") is RunState.STOPPED
    out = Path(settings.out)
    first = (out / "pebble-q8_0.gguf").stat().st_mtime_ns

    held.undo()
    again = QuantizeProcess(settings)
    follow(again)
    assert again.run.state is RunState.DONE, (again.run, again.last_words)
    assert again.run.already == {"q8_0"}
    assert set(again.run.files) == {"q4_0"}
    assert (out / "pebble-q8_0.gguf").stat().st_mtime_ns == first
    assert again.run.manifest == out / "manifest.json"
    assert any(stage.recipe == "q4_0" and stage.seconds for stage in again.run.stages)

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
    process = QuantizeProcess(Settings(str(model), ("q8_0",), measure=False))
    follow(process)
    assert process.run.state is RunState.FAILED
    assert words in process.run.error
    assert process.run.exit_code in (2, 3)


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
    process = QuantizeProcess(settings)
    follow(process)
    assert (process.run.state, process.run.exit_code) == (RunState.FAILED, 4)
    assert process.run.error == problem
    assert "free to build in" in problem
    assert "--out" in problem


@pytest.mark.usefixtures("held")
def test_a_run_that_is_killed_says_so(settings: Settings) -> None:
    process = QuantizeProcess(settings)
    os.kill(process.pid, signal.SIGKILL)
    follow(process)
    assert process.run.state is RunState.FAILED
    assert "killed (signal 9)" in process.run.error


def test_one_that_cannot_be_written_down_is_not_started() -> None:
    with pytest.raises(UsageError, match="did you mean"):
        QuantizeProcess(Settings("org/name", ("q4_k_n",)))


@pytest.mark.usefixtures("held")
def test_stopping_works_where_interrupts_are_ignored(settings: Settings) -> None:
    """A shell starts background jobs so, and children inherit it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = QuantizeProcess(settings)
    finally:
        signal.signal(signal.SIGINT, before)
    follow(process, lambda: bool(process.run.stages))
    process.stop()
    process.stop()
    follow(process)
    assert process.run.state is RunState.STOPPED
