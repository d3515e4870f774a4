"""What a build says with ``--json``: one JSON object a line. docs/quantize.md lists them."""

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from quantize.manifest import FileEntry
from quantize.progress.console import Pace, Reporter

logger = logging.getLogger(__name__)

VERSION = 1
_PROGRESS_SECONDS = 1.0  # between two progress events of a stage


class JsonReporter(Reporter):
    """Events of a build on ``stream``; `done` and `failed` end it.

    Every event has ``event``, its kind, and ``time``, seconds since 1970. A reader that goes away
    does not end the build.
    """

    def __init__(
        self,
        stream: IO[str],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._stream: IO[str] | None = stream
        self._clock, self._wall = clock, wall
        self._begin = clock()
        self._numbers = 0
        self._stages: list[_Stage] = []
        self._emit("start", version=VERSION)

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """``stage_begin`` now and ``stage_end`` with its seconds after the block."""
        self._numbers += 1
        stage = _Stage(self._numbers, self._clock(), Pace(self._clock))
        self._emit("stage_begin", stage=stage.number, parent=self._innermost(), text=text)
        self._stages.append(stage)
        ok = False
        try:
            yield
            ok = True
        finally:
            self._stages.pop()
            seconds = round(self._clock() - stage.begin, 3)
            self._emit("stage_end", stage=stage.number, text=text, seconds=seconds, ok=ok)

    def advance(self, done: float, total: float | None, unit: str) -> None:
        """``progress``, at most once a second in each stage, and always when all is done."""
        if not self._stages:
            return
        stage, now = self._stages[-1], self._clock()
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
        self._emit("file", path=str(folder / entry.path), entry=dataclasses.asdict(entry))

    def failed(self, error: BaseException, exit_code: int) -> None:
        """``error``, the last event of a run that failed."""
        text = str(error) or type(error).__name__
        self._emit("error", kind=type(error).__name__, text=text, exit_code=exit_code)

    def done(self, manifest: Path) -> None:
        """``done`` with the path of the manifest, the last event of a run that did its work."""
        seconds = round(self._clock() - self._begin, 3)
        self._emit("done", manifest=str(manifest), seconds=seconds)

    def _innermost(self) -> int | None:
        return self._stages[-1].number if self._stages else None

    def _emit(self, event: str, **fields: Any) -> None:
        if self._stream is None:
            return
        line = json.dumps({"event": event, "time": round(self._wall(), 3), **fields})
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # What is left in the buffer must go somewhere when the interpreter ends.
            with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            self._stream = None
            logger.warning("nobody reads the events any more; the build continues")


@dataclasses.dataclass(slots=True)
class _Stage:
    number: int
    begin: float
    pace: Pace
    said: float = -1e9  # when its last progress event went out
    finished: bool = False  # whether that was at 100%


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
