from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from quantize.progress import ConsoleReporter, JsonReporter, Pace, beating, figures
from tests.quantize.entries import entry_of

ENTRY = entry_of("q8_0", "größe-q8_0.gguf", bytes=5_256_096)


EVENTS = r"""
{"event": "start", "version": 1}
{"event": "stage_begin", "stage": 1, "parent": null, "text": "outer"}
{"event": "stage_begin", "stage": 2, "parent": 1, "text": "inner"}
{"event": "note", "stage": 2, "text": "gr\u00f6\u00dfer\nals"}
{"event": "stage_end", "stage": 2, "text": "inner", "seconds": 10.1, "ok": false}
{"event": "stage_end", "stage": 1, "text": "outer", "seconds": 10.1, "ok": true}
{"event": "error", "kind": "ValueError", "text": "no", "exit_code": 3}
{"event": "done", "manifest": "out/manifest.json", "seconds": 10.1}
""".lstrip()


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    times = SimpleNamespace(monotonic=clock, time=lambda: 1e9)
    monkeypatch.setattr("quantize.progress.time", times)
    return clock


def test_the_rate_is_that_of_the_last_seconds(clock: Clock):
    pace = Pace()
    assert (pace.rate, pace.seconds_left, pace.share) == (None, None, None)
    pace.update(500, 1000, "tensors")  # done by an earlier run
    assert pace.rate is None
    for _ in range(30):  # 1 a second, then 10 a second
        clock.now += 1
        pace.update(pace.done + 1, 1000, "tensors")
    assert pace.rate == pytest.approx(1)
    for _ in range(25):
        clock.now += 1
        pace.update(pace.done + 10, 1000, "tensors")
    assert pace.rate == pytest.approx(10)
    assert pace.seconds_left == pytest.approx(22)
    assert figures(pace) == "78%, 10 tensors/s, 0:22 left"
    pace.update(1, 4, "files")
    assert figures(pace) == "25%"


def test_a_silent_stage_says_that_it_lasts(clock: Clock):
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream))
    reporter.beat()  # nothing is done yet
    with reporter.stage("converting"):
        for second in range(16):
            clock.now += 1
            if second == 4:
                reporter.step("loading torch")
            reporter.beat()
            reporter.beat()
    assert stream.getvalue().splitlines() == [
        "converting ...",
        "converting: 3 s so far",
        "converting: loading torch, 13 s so far",
        "converting: 16.0 s",
    ]


def test_the_beat_comes_from_a_thread_of_its_own(clock: Clock):
    """The thread that builds waits for a child and says nothing itself."""
    stream = io.StringIO()
    said = threading.Event()

    class Heard(Console):
        def print(self, *things: Any, **options: Any) -> None:
            super().print(*things, **options)
            if "so far" in str(things):
                said.set()

    reporter = ConsoleReporter(Heard(file=stream))
    with beating(reporter, every=0.01), reporter.stage("converting"):
        clock.now += 4
        assert said.wait(60)
    assert "converting: 4 s so far" in stream.getvalue()


def test_plain_lines_come_every_ten_seconds(clock: Clock):
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream))
    with reporter.stage("reading [bold]x[/bold]"):
        for done in range(1, 26):
            clock.now += 1
            reporter.advance(done, 50, "lines")
        reporter.note("half [1]")
    reporter.published(Path("out"), ENTRY)
    assert stream.getvalue().splitlines() == [
        "reading [bold]x[/bold] ...",
        "reading [bold]x[/bold]: 20%, 1 lines/s, 0:40 left",
        "reading [bold]x[/bold]: 40%, 1 lines/s, 0:30 left",
        "  half [1]",
        "reading [bold]x[/bold]: 25.0 s",
        "  größe-q8_0.gguf is in out: 5.3 MB",
    ]


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {}])
def test_a_terminal_gets_a_bar_unless_it_is_dumb(clock: Clock, environ: dict[str, str]):
    stream = io.StringIO()
    live = environ.get("TERM") != "dumb"
    console = Console(
        file=stream,
        width=80,
        force_terminal=True,
        highlight=False,
        _environ={"TERM": "xterm", **environ},
    )
    reporter = ConsoleReporter(console)
    long_name = "computing the importance matrix of a model with a long name [x]"
    with reporter.stage(long_name):
        reporter.advance(0, 4e6, "bytes")
        clock.now += 2
        with reporter.stage("inner"):
            reporter.advance(1, None, "files")
        reporter.advance(3e6, 4e6, "bytes")
        if live:
            reporter._live.refresh()
    text = stream.getvalue()
    assert f"{long_name}: 2.0 s" in text
    assert "inner: 0.0 s" in text
    assert ("75%, 1.5 MB/s, 0:01 left" in text) == live
    assert ("━" in text) == live
    assert ("\x1b[?25l" in text) == live  # the cursor is hidden while the bar is drawn
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
    coloured = any(f"\x1b[{code}" in text for code in ("3", "38"))
    assert coloured == (live and "NO_COLOR" not in environ)


def test_a_failing_stage_puts_the_cursor_back(clock: Clock):
    stream = io.StringIO()
    reporter = ConsoleReporter(Console(file=stream, force_terminal=True, highlight=False))
    with pytest.raises(ZeroDivisionError), reporter.stage("outer"), reporter.stage("inner"):
        raise ZeroDivisionError
    assert "\x1b[?25h" in stream.getvalue()
    assert ": 0.0 s" not in stream.getvalue()
    with reporter.stage("again"):
        pass
    assert "again: 0.0 s" in stream.getvalue()


def test_events(clock: Clock):
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    with reporter.stage("outer"):
        with contextlib.suppress(ZeroDivisionError), reporter.stage("inner"):
            for done in range(101):
                reporter.advance(done, 100, "lines")
                clock.now += 0.1
            reporter.note("größer\nals")
            raise ZeroDivisionError
        reporter.published(Path("out"), ENTRY)
    reporter.failed(ValueError("no"), 3)
    reporter.done(Path("out/manifest.json"))
    lines = stream.getvalue().replace('"time": 1000000000.0, ', "").splitlines()
    progress = [json.loads(line) for line in lines if '"progress"' in line]
    assert 10 <= len(progress) <= 12  # one a second and the end
    assert progress[-1].pop("rate") == pytest.approx(10)
    figures = {"done": 100, "total": 100, "unit": "lines", "seconds_left": 0}
    assert progress[-1] == {"event": "progress", "stage": 2, **figures}
    (file,) = (json.loads(line) for line in lines if '"file"' in line)
    assert file["entry"]["sha256"] == ENTRY.sha256
    assert file["path"] == "out/größe-q8_0.gguf"
    rest = [line for line in lines if '"progress"' not in line and '"file"' not in line]
    assert rest == EVENTS.splitlines()


def test_a_reader_that_goes_away_does_not_end_the_build():
    script = (
        "import sys\nfrom pathlib import Path\nfrom quantize.progress import JsonReporter\n"
        "reporter = JsonReporter(sys.stdout)\nsys.stdin.read(1)\n"
        "for _ in range(9):\n    reporter.note('x' * 9999)\nprint('done', file=sys.stderr)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert json.loads(process.stdout.readline())["event"] == "start"
    process.stdout.close()
    process.stdin.close()
    said = process.stderr.read().decode()
    assert process.wait() == 0
    assert said.splitlines() == ["nobody reads the events any more; the build continues", "done"]
