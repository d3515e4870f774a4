"""Progress of a build: lines for people, JSON events for programs, the time left. docs/quantize.md
lists the events.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from quantize.manifest import FileEntry
from quantize.terminal import Console
from runtimes.untrusted import visible

_FIRST_SECONDS = 3.0  # of a silent stage, until a line says that it lasts
_PLAIN_SECONDS = 10.0  # between two lines of one stage where there is no live line
_BAR_WIDTH = 20


class Reporter:
    """Listener of a build; this one says nothing. All calls come from the thread
    that runs the build."""

    def stage(self, text: str) -> contextlib.AbstractContextManager[None]:
        """A stage that lasts as long as the with block. Stages may be nested."""
        return contextlib.nullcontext()

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """How far the innermost stage is: ``done`` of ``total`` (None: not known), counted in
        ``unit``, a plural such as "tensors"; "bytes" are shown as MB. May be called often. A stage
        of several parts starts again from 0, or changes its unit."""

    def step(self, text: str) -> None:
        """Note what the innermost stage does now, such as "loading torch", without figures."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def published(self, folder: Path, entry: FileEntry) -> None:
        """``entry`` is in ``folder`` and in its manifest now."""


SILENT = Reporter()


class ConsoleReporter(Reporter):
    """Stages with their seconds on stderr. Rich honours NO_COLOR and dumb terminals."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._stages: list[_Stage] = []
        self._live = _live(self._console)

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show ``text`` while the block runs, and how long it took when it is done."""
        begin, text = time.monotonic(), visible(text)
        task = self._live.add_task(escape(text), total=None, figures="")
        if self._live.disable:
            self._line(f"{text} ...")
        elif not self._stages:
            self._live.start()
        self._stages.append(_Stage(task, text, begin, Pace(), begin))
        try:
            yield
        finally:
            self._stages.pop()
            self._live.remove_task(task)
            if not self._stages and not self._live.disable:
                self._live.stop()
        self._line(f"{text}: {time.monotonic() - begin:.1f} s")

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """Move the stage's bar, or print a line when the last one is ten seconds old."""
        if not self._stages:
            return
        stage, now = self._stages[-1], time.monotonic()
        stage.pace.update(done, total, unit)
        text = figures(stage.pace)
        self._live.update(TaskID(stage.number), completed=done, total=total, figures=escape(text))
        if self._live.disable and now - stage.said >= _PLAIN_SECONDS:
            stage.said = now
            self._line(f"{stage.text}: {text}")

    def step(self, text: str) -> None:
        """Show it beside the stage; where there is no live line, `beat` tells it if it lasts."""
        for stage in self._stages[-1:]:
            stage.step = text
            self._live.update(TaskID(stage.number), figures=escape(visible(text)))

    def beat(self) -> None:
        """Print a line about a silent stage where there is no live line: after three seconds and
        then every ten. May be called from another thread."""
        now = time.monotonic()
        for stage in self._stages[-1:] if self._live.disable else ():
            quiet = _FIRST_SECONDS if stage.said == stage.begin else _PLAIN_SECONDS
            if now - stage.said >= quiet:
                stage.said = now
                doing = figures(stage.pace) if stage.pace.unit else stage.step
                so_far = f"{', ' * bool(doing)}{now - stage.begin:.0f} s so far"
                self._line(f"{stage.text}: {doing}{so_far}")

    def note(self, text: str) -> None:
        """Print one indented line."""
        self._line(f"  {text}")

    def published(self, folder: Path, entry: FileEntry) -> None:
        """Print the file's name and size."""
        self._line(f"  {entry.path} is in {folder}: {entry.bytes / 1e6:,.1f} MB")

    def _line(self, text: str) -> None:
        self._console.print(visible(text, lines=True), markup=False, soft_wrap=True)


@contextlib.contextmanager
def beating(reporter: ConsoleReporter, every: float = 1.0) -> Iterator[None]:
    """Have ``reporter`` say what lasts while the block runs, however silent that is."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(every):
            reporter.beat()

    thread = threading.Thread(target=beat, name="quantize-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass
class _Stage:
    number: int
    text: str
    begin: float
    pace: Pace
    said: float  # when its last line or event of progress went out
    step: str = ""
    finished: bool = False  # whether that was at 100%


def _live(console: Console) -> Progress:
    """A line for each open stage; a stage's name gives way first where the terminal is narrow."""
    return Progress(
        SpinnerColumn(),
        TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
        ),
        BarColumn(_BAR_WIDTH),
        TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_interactive,
        transient=True,
        expand=True,
    )


_WINDOW = 20.0  # seconds that the rate looks back; a stage's first steps are rarely typical


class Pace:
    """The last seconds of a count that goes up.

    ``done``, ``total`` and ``unit`` are what `update` was last told.
    """

    def __init__(self) -> None:
        self.done = 0.0
        self.total: float | None = None
        self.unit = ""
        self._seen: deque[tuple[float, float]] = deque()

    def update(self, done: float, total: float | None, unit: str) -> None:
        """Note that ``done`` of ``total`` are done now; a step back or another unit starts anew.

        The first count is where the rate begins: what an interrupted run did before costs nothing.
        """
        now = time.monotonic()
        if (self.unit and unit != self.unit) or done < self.done:
            self._seen.clear()
        self.done, self.total, self.unit = done, total, unit
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Units a second over the last twenty seconds; None before anything has moved."""
        if not self._seen:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first and after > before else None

    @property
    def seconds_left(self) -> float | None:
        """At that rate; None without a total or a rate."""
        rate = self.rate
        return max(self.total - self.done, 0.0) / rate if rate and self.total is not None else None

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None without a total."""
        return min(self.done / self.total, 1.0) if self.total else None


def figures(pace: Pace) -> str:
    """Text such as "45%, 12.5 tensors/s, 0:14 left", as much of it as is known."""
    parts = [f"{pace.share:.0%}" if pace.share is not None else amount(pace.done, pace.unit)]
    if pace.rate is not None:
        parts.append(f"{amount(pace.rate, pace.unit)}/s")
    if pace.seconds_left is not None:
        parts.append(f"{clock(pace.seconds_left)} left")
    return ", ".join(parts)


def amount(value: float, unit: str) -> str:
    """Text such as "12.5 tensors"; bytes in MB."""
    if unit == "bytes":
        value, unit = value / 1e6, "MB"
    digits = 1 if value < 100 and value != int(value) else 0
    return f"{value:,.{digits}f} {unit}".rstrip()


def clock(seconds: float) -> str:
    """Text such as 0:07 or 1:02:03."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


logger = logging.getLogger(__name__)

VERSION = 1
_PROGRESS_SECONDS = 1.0  # between two progress events of a stage


class JsonReporter(Reporter):
    """Events of a build on ``stream``; `done` and `failed` end it.

    Every event has ``event``, its kind, and ``time``, seconds since 1970. A reader that goes away
    does not end the build.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream: IO[str] | None = stream
        self._begin = time.monotonic()
        self._numbers = 0
        self._stages: list[_Stage] = []
        self._emit("start", version=VERSION)

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """``stage_begin`` now and ``stage_end`` with its seconds after the block."""
        self._numbers += 1
        stage = _Stage(self._numbers, text, time.monotonic(), Pace(), -1e9)
        self._emit("stage_begin", stage=stage.number, parent=self._innermost(), text=text)
        self._stages.append(stage)
        ok = False
        try:
            yield
            ok = True
        finally:
            self._stages.pop()
            seconds = round(time.monotonic() - stage.begin, 3)
            self._emit("stage_end", stage=stage.number, text=text, seconds=seconds, ok=ok)

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """``progress``, at most once a second in each stage, and always when all is done."""
        if not self._stages:
            return
        stage, now = self._stages[-1], time.monotonic()
        stage.pace.update(done, total, unit)
        finished = total is not None and done >= total
        if finished == stage.finished and now - stage.said < _PROGRESS_SECONDS:
            return
        stage.said, stage.finished = now, finished
        self._emit(
            "progress",
            stage=stage.number,
            done=done,
            total=total,
            unit=unit,
            rate=_rounded(stage.pace.rate),
            seconds_left=_rounded(stage.pace.seconds_left),
        )

    def step(self, text: str) -> None:
        """``step``."""
        self._emit("step", stage=self._innermost(), text=text)

    def note(self, text: str) -> None:
        """``note``."""
        self._emit("note", stage=self._innermost(), text=text)

    def published(self, folder: Path, entry: FileEntry) -> None:
        """``file`` with the manifest's entry."""
        self._emit("file", path=str(folder / entry.path), entry=asdict(entry))

    def failed(self, error: BaseException, exit_code: int) -> None:
        """``error``, the last event of a run that failed."""
        text = str(error) or type(error).__name__
        self._emit("error", kind=type(error).__name__, text=text, exit_code=exit_code)

    def done(self, manifest: Path) -> None:
        """``done`` with the path of the manifest, the last event of a run that did its work."""
        seconds = round(time.monotonic() - self._begin, 3)
        self._emit("done", manifest=str(manifest), seconds=seconds)

    def _innermost(self) -> int | None:
        return self._stages[-1].number if self._stages else None

    def _emit(self, event: str, **fields: Any) -> None:
        if self._stream is None:
            return
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields})
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # What is left in the buffer must go somewhere when the interpreter ends.
            with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self._stream = None
            logger.warning("nobody reads the events any more; the build continues")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
