"""What a journal tells, read on while the job writes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.batch.journal.lines import END, HEADER, LEFT, RUN, Damaged, LineReader
from app.batch.settings import comparable
from app.batch.watch.command import Command
from app.batch.watch.rows import RowFigures, Rows
from app.batch.watch.speeds import Speed, SpeedHistory
from app.batch.watch.tail import Tail

_RECENT_S = 60.0
_BUCKET_S = 2.0


class JournalFeed:
    """Fills ``rows``, and counts what the last run has done. Not thread-safe."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self.rows = rows
        self.settings: dict[str, Any] = {}
        self.run: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.left: dict[str, Any] | None = None  # the last note on the time left
        self.done = self.failed = 0
        self.prompt_tokens = self.output_tokens = 0
        self.last = 0.0  # when the last row was done, in Unix seconds
        self._recent: deque[tuple[float, int]] = deque()
        self.invalid: Sequence[int] = ()  # rows of the next run that are known to be so
        self.speeds = SpeedHistory()
        self._bucket: tuple[int, int] | None = None
        self._tail = Tail(path)
        self._lines = LineReader()

    @property
    def path(self) -> Path:
        """The journal."""
        return self._tail.path

    @property
    def behind(self) -> int:
        """Bytes that are there and not read."""
        return self._tail.behind

    @property
    def part_read(self) -> float:
        """0 to 1."""
        return self._tail.offset / self._tail.size if self._tail.size else 1.0

    @property
    def damaged(self) -> list[Damaged]:
        """Lines that say nothing any more, as long as no run has noted that it told of them."""
        return self._lines.damaged

    @property
    def command(self) -> Command | None:
        """What the last run was started with; None if the journal does not say."""
        run = self.run or {}
        arguments, folder = run.get("command"), run.get("folder")
        if not isinstance(arguments, list) or not isinstance(folder, str):
            return None
        return Command(tuple(map(str, arguments)), Path(folder))

    def read(self) -> bool:
        """Take in the next lines; True if there were any."""
        anew, lines = self._tail.read()
        if anew:
            self._lines = LineReader()
            self._begin_settings({})
        for offset, line in lines:
            record = self._lines.take(offset, line)
            if record is not None:
                self._take(record, offset)
        return anew or bool(lines)

    def output_tps(self, now: float) -> float:
        """Answer tokens a second over the last minute of the run."""
        self._forget_before(now - _RECENT_S)
        begun = self.run["at"] if self.run else now
        span = min(_RECENT_S, max(now - begun, 1e-3))
        return sum(tokens for _, tokens in self._recent) / span

    def figures(self, index: int) -> RowFigures | None:
        """A row's figures, from the journal if they are not at hand."""
        known = self.rows.figures(index)
        if known is not None:
            return known
        record = self.record(index)
        if record is None:
            return None
        found = RowFigures.of(record["answer"])
        self.rows.keep(index, found)
        return found

    def record(self, index: int) -> dict[str, Any] | None:
        """A row's last record; None if it has none, or it is not there any more."""
        offset = self.rows.offset(index)
        if offset is None:
            return None
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                record = self._lines.again(offset, file.readline())
        except OSError:
            return None
        return record if record is not None and record.get("index") == index else None

    def _take(self, record: dict[str, Any], offset: int) -> None:
        kind = record.get("ingot")
        if kind == HEADER:
            if comparable(record["settings"]) != comparable(self.settings):
                self._begin_settings(record["settings"])
        elif kind == RUN:
            self._begin_run(record)
        elif kind == END:
            self.end = record
        elif kind == LEFT:
            self.left = record
        elif kind is None:
            self._row(record, offset)

    def _begin_settings(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.rows.forget()
        self.run = self.end = self.left = None

    def _begin_run(self, record: dict[str, Any]) -> None:
        self.run, self.end, self.left = record, None, None
        self.done = self.failed = self.prompt_tokens = self.output_tokens = 0
        self._recent.clear()
        self.speeds, self._bucket = SpeedHistory(), None
        self.last = float(record.get("at", 0.0))
        command = self.command
        asked = None if command is None else command.asked()
        self.rows.begin_run(keep_failures=asked is not None and asked.spec.running.skip_failed)
        self.rows.grow(int(record.get("input_rows", 0)))
        self.rows.set_invalid(self.invalid)

    def _row(self, record: dict[str, Any], offset: int) -> None:
        answer, good = record["answer"], record["ok"]
        self.rows.finish(record["index"], answer, offset, good=good)
        if not good:
            self.failed += 1
            return
        usage = answer.get("usage", {})
        self.done += 1
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.output_tokens += usage.get("completion_tokens", 0)
        at, tokens = answer.get("created", self.last), usage.get("completion_tokens", 0)
        self.last = max(self.last, at)
        self._recent.append((at, tokens))
        self._forget_before(self.last - _RECENT_S)
        self._add_speed(at, tokens)

    def _forget_before(self, moment: float) -> None:
        while self._recent and self._recent[0][0] <= moment:
            self._recent.popleft()

    def _add_speed(self, at: float, tokens: int) -> None:
        """Sum answers up over a few seconds: a journal has no speeds, only what was finished."""
        begun = self.run["at"] if self.run else at
        number = int(max(0.0, at - begun) / _BUCKET_S)
        before = self._bucket
        if before is not None and number > before[0]:
            self.speeds.add(Speed((before[0] + 1) * _BUCKET_S, 0.0, before[1] / _BUCKET_S))
            before = None
        self._bucket = (number, tokens) if before is None else (before[0], before[1] + tokens)
