"""The lines of a journal (headers, finished rows, notes on the runs that wrote them), and
``JournalState``, which reads them: settings, the last run, its progress and speed. Each reader of a
journal has one: a run that resumes it (``Journal``), `ingot batch status`, the terminal app.

The format is JSON lines. A header is ``{"ingot":"batch-journal","version":3,"settings":{...}}``; a
row ``{"key":...,"index":...,"ok":...,"answer":{...}}``; a note has its kind as ``ingot``. Each line
ends with ``"crc"``, its seal: the CRC-32 of what stands before it. Version 2 had no seals; a
journal that was begun so continues with a header of version 3.

A run begins with the note ``batch-run``: ``at`` (Unix seconds), ``host`` and ``pid`` of the process
and ``born`` (when it was started), the ``command`` (the arguments after ``ingot``) and the
``folder`` that it was started in, ``rows`` of the input's part, ``input_rows`` of all of it,
``invalid`` and ``reused`` among them, ``shard`` (I/N or null), ``format`` of the output, ``input``;
and of an `ingot batch` its ``spec`` (``spec_json``), which earlier versions did not write.
While it runs, ``batch-left`` says how long it will take: ``at`` and the figures of ``left_json``.
It ends with ``batch-end`` unless it was killed: ``at`` and ``unfinished`` (rows without a result).

A line whose seal is wrong or missing says nothing. It stays where it is: nothing is ever cut out.
"""

import json
import os
import re
import socket
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from app.batch.output.records import exact_line
from app.batch.report.eta import Left, left_of
from app.batch.settings import KEY_BYTES, comparable
from app.openai.answer import is_answer, is_count, is_number, is_text, list_of
from runtimes.errors import RequestError
from runtimes.machine.processes import birth, is_alive
from runtimes.untrusted import Bounds, Fields, JsonObject, excess

VERSION = 3
VERSIONS = frozenset({2, VERSION})
HEADER = "batch-journal"
RUN, END, DAMAGE, LEFT = "batch-run", "batch-end", "batch-damage", "batch-left"

_SEAL = b',"crc":"'
_SEAL_BYTES = len(_SEAL) + 8 + len(b'"}\n')
INDEX = re.compile(rb'"index":(\d{1,18})')
MOST_LINE = 256 * 2**20  # bytes
_SHOWN = 5
_DEEP = Bounds(depth=64, values=2**31, characters=2**40)  # what is large is only long


LEFT_OUT = "this is left out, and stays in the file; rows without another record are computed again"
LOST = "the next run leaves this out; it computes again the rows that have no other record"


def told(path: Path, damaged: Mapping[int, str], then: str) -> list[str]:
    """Return messages on ``JournalState.damaged``, the last on what happens ``then``; none without
    damage."""
    if not damaged:
        return []
    lines = [f"{path}: {said}" for said in islice(damaged.values(), _SHOWN)]
    if len(damaged) > _SHOWN:
        lines.append(f"{path}: and {len(damaged) - _SHOWN:,} more damaged lines")
    return [*lines, f"{path}: {then}"]


def run_note(**job: int | str | Fields | None) -> JsonObject:
    """Values of a ``batch-run`` note of this process; ``job`` has those from ``rows`` on."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": birth(os.getpid()),
        "command": sys.argv[1:],
        "folder": os.getcwd(),
        **job,
    }


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with its offset in bytes; the last may lack its newline, and one that is longer
    than any record comes in pieces. Raises OSError."""
    offset = 0
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", buffering=1 << 20, opener=lambda name, _: os.open(name, flags)) as file:
        for line in iter(lambda: file.readline(MOST_LINE), b""):
            yield offset, line
            offset += len(line)


def sealed_line(record: JsonObject) -> bytes:
    """A record as a line with its seal."""
    body = exact_line(record)[: -len(b"}\n")]
    return body + _SEAL + b'%08x"}\n' % zlib.crc32(body)


def sealed(line: bytes) -> bool | None:
    """Whether the seal is right; None if there is none."""
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    if not (seal.startswith(_SEAL) and seal.endswith(b'"}\n')):
        return None
    return seal[len(_SEAL) : -len(b'"}\n')] == b"%08x" % zlib.crc32(body)


def parse_line(line: bytes) -> JsonObject | None:
    """A whole journal line, or None for one that is torn or not ours: all that a reader takes from
    it is of its kind, whoever wrote it. A wrong seal is no seal."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if line.count(b"[") + line.count(b"{") > _DEEP.depth and excess(value, _DEEP):
        return None
    kind = value.get("ingot")
    if not all(check(value[name]) for name, check in _CHECKS.items() if name in value):
        return None
    if not isinstance(kind, str | None) or not _NEEDED.get(kind, set()) <= value.keys():
        return None
    if kind is None or kind in (HEADER, RUN, END):
        return value
    return value if sealed(line) else None


def _is_key(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(bytes.fromhex(value)) == KEY_BYTES
    except ValueError:
        return False


def _is_settings(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("sampling", {}), dict)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


# What is read of a line: what has to be there, by its kind, and of which kind it must be.
_NEEDED: dict[str | None, set[str]] = {
    None: {"key", "index", "ok", "answer"},
    HEADER: {"settings"},
    RUN: {"at", "rows", "invalid", "reused"},
    END: {"at", "unfinished"},
    LEFT: {"at"},
}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "at": lambda value: is_number(value, 1e11),  # the year 5138
    **dict.fromkeys("rows input_rows invalid reused unfinished".split(), is_count),
    **dict.fromkeys("host shard format input folder".split(), _or_none(is_text)),
    "command": _or_none(list_of({str})),
    **dict.fromkeys("born left_s left_least_s left_most_s".split(), _or_none(is_number)),
    "spec": lambda value: isinstance(value, dict),
    "settings": _is_settings,
    "version": is_count,
    "key": _is_key,
    "index": lambda value: is_count(value, 2**62),
    "ok": lambda value: isinstance(value, bool),
    "answer": lambda value: isinstance(value, dict) and is_answer(value),
    "pid": _or_none(is_count),
    "offsets": list_of({int}),
}


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
        self.settings: JsonObject | None = None  # those of the last header
        self.version = VERSION  # of the last header
        self.settings_lost = False  # the last header is damaged, or the first line is no header
        self.whole_lines = self._lines = 0
        self._sealed_from: int | None = None  # the offset from which on each line has a seal
        # By offset, what is wrong with each line that says nothing any more, as long as no run has
        # noted that it was told.
        self.damaged: dict[int, str] = {}
        self.run: JsonObject | None = None  # the notes on the last run: its begin,
        self.end: JsonObject | None = None  # its end,
        self.left: JsonObject | None = None  # and the last one on its time left

    def _reset(self) -> None:
        self.done = 0  # rows that were answered
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.last = 0.0  # when a row was answered last, in Unix seconds
        self._failed: set[int] = set()
        self._recent: deque[tuple[float, int]] = deque()  # moments and tokens of the last minute

    @property
    def failed(self) -> int:
        """Rows with an error."""
        return len(self._failed)

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
                self.damaged.pop(known, None)

    def again(self, offset: int, line: bytes) -> JsonObject | None:
        """The record of a line, also of one that was read before; None if it is damaged."""
        needed = self._sealed_from is not None and offset >= self._sealed_from
        if (seal := sealed(line)) is False or (needed and seal is None):
            return None
        record = parse_line(line)
        return record if seal or not record or record.get("version") != VERSION else None

    def _damage(self, offset: int, line: bytes) -> None:
        # Two marks, so that one damaged byte cannot hide both.
        header = b'"batch-journal"' in line or b'"settings":{' in line
        whole = line.endswith(b"\n")
        said = "is damaged" if whole else "is not whole, as after a crash of the machine"
        if header:
            said += " (the job's settings)"
        elif found := INDEX.search(line):
            said += f" (it seems to be the answer of index {int(found[1])})"
        if len(self.damaged) < _MOST_DAMAGED:
            self.damaged[offset] = f"line {self._lines} {said}"
        if header or offset == 0:
            self.settings_lost, self.settings = True, None

    def _header(self, record: JsonObject) -> None:
        self.settings_lost = False
        settings, before = record["settings"], self.settings
        self.version, self.settings = record.get("version", 0), settings
        if before is None or comparable(before) != comparable(settings):
            self._other_settings()

    def _other_settings(self) -> None:
        """Forget the last run: other settings make other answers."""
        self.run = self.end = self.left = None
        self._reset()

    def _run(self, record: JsonObject) -> None:
        self.run, self.end, self.left = record, None, None
        self._reset()
        self.last = float(record["at"])

    def _row(self, record: JsonObject, offset: int) -> None:
        if not record["ok"]:
            self._failed.add(record["index"])
            return
        answer = record["answer"]
        usage, at = answer.get("usage", {}), answer.get("created", self.last)
        tokens = usage.get("completion_tokens", 0)
        self._failed.discard(record["index"])
        self.done += 1
        self.prompt_tokens += usage.get("prompt_tokens", 0)
        self.cached_tokens += usage.get("cached_tokens", 0)
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
