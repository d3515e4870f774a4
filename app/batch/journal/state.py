"""What the lines of a journal say: its settings, the last run, how far that is and how fast.

All who read a journal have a ``JournalState``: a run that resumes it (``Journal``), the status, and
the terminal app (``app.batch.watch.follow``).
"""

import socket
from collections import deque
from pathlib import Path
from typing import Any

from app.batch.journal.lines import (
    DAMAGE,
    END,
    HEADER,
    INDEX,
    LEFT,
    RUN,
    VERSION,
    Damaged,
    lines_of,
    parse_line,
    sealed,
)
from app.batch.report.eta import Left, left_of
from app.batch.settings import comparable
from runtimes.errors import RequestError
from runtimes.machine.processes import is_alive

RECENT_S = 60.0
_MOST_DAMAGED = 100_000  # lines that are told of: a file from elsewhere may have any number
NOT_OURS = "{} is not a journal of ingot batch, or none of its lines is whole"


class JournalState:
    """As of the lines that ``take`` was given, from the first on. Figures are of the last run. Not
    thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin_file()
        self._reset()

    def _begin_file(self) -> None:
        self.settings: dict[str, Any] | None = None  # those of the last header
        self.version = VERSION  # of the last header
        self.settings_lost = False  # the last header is damaged, or the first line is no header
        self.whole_lines = self._lines = 0
        self._sealed_from: int | None = None  # the offset from which on each line has a seal
        self._damaged: dict[int, Damaged] = {}
        self.run: dict[str, Any] | None = None  # the notes on the last run: its begin,
        self.end: dict[str, Any] | None = None  # its end,
        self.left: dict[str, Any] | None = None  # and the last one on its time left

    def _reset(self) -> None:
        self.done = 0  # rows that were answered
        self.prompt_tokens = self.output_tokens = 0
        self.last = 0.0  # when a row was answered last, in Unix seconds
        self._failed: set[int] = set()
        self._recent: deque[tuple[float, int]] = deque()  # moments and tokens of the last minute

    @property
    def failed(self) -> int:
        """Rows with an error."""
        return len(self._failed)

    @property
    def damaged(self) -> list[Damaged]:
        """Lines that say nothing any more, as long as no run has noted that it told of them."""
        return list(self._damaged.values())

    @property
    def here(self) -> bool:
        """Whether the last run was on this machine."""
        return self.run is not None and self.run.get("host") == socket.gethostname()

    @property
    def running(self) -> bool:
        """Whether the last run's process is alive, as far as this machine can tell."""
        run = self.run
        if run is None or self.end is not None or not self.here:
            return False
        return is_alive(run.get("pid"), run.get("born"))

    def take(self, offset: int, line: bytes) -> None:
        """The next line, which begins at ``offset``."""
        self._lines += 1
        record = self.again(offset, line)
        if record is None:
            self._damage(offset, line)
            return
        self.whole_lines += 1
        if self._sealed_from is None and sealed(line):
            self._sealed_from = offset
        kind = record.get("ingot")
        if kind != HEADER and offset == 0:
            self.settings_lost, self.settings = True, None
        if kind is None:
            self._row(record, offset)
        elif kind == HEADER:
            self._header(record)
        elif kind == RUN:
            self._run(record)
        elif kind == END:
            self.end = record
        elif kind == LEFT:
            self.left = record
        elif kind == DAMAGE:
            for known in record.get("offsets", ()):
                self._damaged.pop(known, None)

    def again(self, offset: int, line: bytes) -> dict[str, Any] | None:
        """The record of a line, also of one that was read before; None if it is damaged."""
        seal = sealed(line)
        needed = self._sealed_from is not None and offset >= self._sealed_from
        if seal is False or (needed and seal is None):
            return None
        record = parse_line(line)
        if record is not None and seal is None and record.get("version") == VERSION:
            return None
        return record

    def _damage(self, offset: int, line: bytes) -> None:
        # Two marks, so that one damaged byte cannot hide both.
        header = b'"batch-journal"' in line or b'"settings":{' in line
        found = INDEX.search(line)
        index = int(found[1]) if found else None
        whole = line.endswith(b"\n")
        if len(self._damaged) < _MOST_DAMAGED:
            self._damaged[offset] = Damaged(self._lines, offset, header, index, whole)
        if header or offset == 0:
            self.settings_lost, self.settings = True, None

    def _header(self, record: dict[str, Any]) -> None:
        self.settings_lost = False
        settings, before = record["settings"], self.settings
        self.version, self.settings = record.get("version", 0), settings
        if before is None or comparable(before) != comparable(settings):
            self._other_settings()

    def _other_settings(self) -> None:
        """What follows are other answers than what was there."""
        self.run = self.end = self.left = None
        self._reset()

    def _run(self, record: dict[str, Any]) -> None:
        self.run, self.end, self.left = record, None, None
        self._reset()
        self.last = float(record.get("at", 0.0))

    def _row(self, record: dict[str, Any], offset: int) -> None:
        if not record["ok"]:
            self._failed.add(record["index"])
            return
        answer = record["answer"]
        usage, at = answer.get("usage", {}), answer.get("created", self.last)
        tokens = usage.get("completion_tokens", 0)
        self._failed.discard(record["index"])
        self.done += 1
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.output_tokens += tokens
        self.last = max(self.last, at)
        self._recent.append((at, tokens))
        while self._recent and self._recent[0][0] <= self.last - RECENT_S:
            self._recent.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        """Rows and answer tokens a second over the last minute of the run."""
        tokens = [tokens for at, tokens in self._recent if at > now - RECENT_S]
        span = min(RECENT_S, max(now - (self.run["at"] if self.run else now), 1e-3))
        return len(tokens) / span, sum(tokens) / span

    def left_at(self, now: float) -> Left | None:
        """The time left, by the last note on it."""
        if self.left is None or (left := left_of(self.left)) is None:
            return None
        return left.after(now - self.left["at"])


def read_state(path: Path) -> JournalState:
    """Read a journal, also one that another process is writing to. Raises RequestError when there
    is none."""
    state = JournalState(path)
    try:
        for offset, line in lines_of(path):
            if not line.endswith(b"\n"):
                break  # it is being written, or a crash cut it off: nothing that was finished
            state.take(offset, line)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    if not state.whole_lines:
        raise RequestError(NOT_OURS.format(path))
    return state
