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
from app.builds.run import QuantizeProcess, RunState, Settings
from tests.app import stopping
from tests.support import until


def follow(process: QuantizeProcess, enough: Callable[[], bool] = lambda: False) -> None:
    """Poll as a screen does, until the end or ``enough()``."""
    until(lambda: not process.poll() or enough())


@pytest.fixture
def settings(float_gguf: Path, tmp_path: Path) -> Settings:
    return Settings(str(float_gguf), ("q8_0", "q4_0"), out=str(tmp_path / "out"), measure=False)


def test_runs_that_are_killed_and_stopped_go_on_from_what_is_finished(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No q4_0 is made at first: its quantizer stops itself. Interrupts are ignored, as a shell
    starts background jobs, and children inherit it."""
    out = Path(settings.out)
    built = out / "pebble-q8_0.gguf"
    with monkeypatch.context() as held:
        for name, value in stopping.before_quantizing(tmp_path / "held", built).items():
            held.setenv(name, value)
        killed = QuantizeProcess(settings)
        follow(killed, lambda: bool(killed.run.stages))
        os.kill(killed._process.pid, signal.SIGKILL)
        follow(killed)
        assert killed.run.state is RunState.FAILED
        assert "killed (signal 9)" in killed.run.error
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = QuantizeProcess(settings)
        finally:
            signal.signal(signal.SIGINT, before)
        follow(process, lambda: "q8_0" in process.run.files)
        until(lambda: stopping.waiting(process._process.pid))
        process.stop()
        process.stop()
        follow(process)
    assert process.run.state is process.run.state_of("q4_0") is RunState.STOPPED
    first = built.stat().st_mtime_ns

    again = QuantizeProcess(settings)
    follow(again)
    assert again.run.state is RunState.DONE, again.run
    assert (again.run.already, set(again.run.files)) == ({"q8_0"}, {"q4_0"})
    assert built.stat().st_mtime_ns == first
    assert again.run.manifest == out / "manifest.json"
    assert any(stage.recipe == "q4_0" and stage.seconds for stage in again.run.stages)

    result = read_result(out)
    assert {row.recipe: row.path.is_file() for row in result.rows} == {"q4_0": True, "q8_0": True}
    assert result.headings == ("MB", "bits")
    assert result.report == out / "report.html"


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
    ((_, problem),) = foresee(settings).wrong
    process = QuantizeProcess(settings)
    follow(process)
    assert (process.run.state, process.run.error) == (RunState.FAILED, problem)
    assert "free to build in" in problem
    assert "--out" in problem
