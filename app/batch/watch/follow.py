"""A job's journal and the events of its --json, read on while the job writes."""

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.batch.journal.lines import MOST_LINE, JournalState
from app.batch.watch.process import BatchCommand, noted_command
from app.batch.watch.records import records
from app.batch.watch.rows import Rows, SpeedAt, SpeedHistory
from app.openai.answer import Answer
from runtimes.untrusted import JsonObject

_BUCKET_S = 2.0
# Of a log that was not followed for days, only the end is read: the journal has the rows.
_LAST_EVENTS = 4 << 20
_NOTES = 20
_ANSWERS_KEPT = 200


@dataclass(slots=True)
class FileTail:
    """The whole lines of a file that another process is writing. Reads on from where it stopped; a
    file that shrank is read from its beginning."""

    path: Path
    last: int | None = None  # of a longer file, only about so many bytes at its end
    offset: int = 0
    size: int = 0
    more: bool = False  # whether whole lines may be left

    def read(self, most: int = 1 << 18) -> tuple[bool, list[tuple[int, bytes]]]:
        """Whether the file began anew, and the next whole lines with their offsets: about ``most``
        bytes, but at least one line if one is whole."""
        lines: list[tuple[int, bytes]] = []
        try:
            with self.path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                file.seek(max(0, self.offset - 1))
                # One that shrank does not go on after a newline, even if it has grown again since.
                anew = self.offset > 0 and file.read(1) != b"\n"
                if anew:
                    self.offset = 0
                file.seek(self.offset)
                if self.last is not None and self.size - self.offset > self.last:
                    file.seek(self.size - self.last)
                    file.readline()
                    self.offset = file.tell()
                self.last, end = None, self.offset + most
                for line in iter(lambda: file.readline(MOST_LINE), b""):
                    part = not line.endswith(b"\n") and len(line) < MOST_LINE
                    if part or self.offset >= end:
                        break
                    lines.append((self.offset, line))
                    self.offset += len(line)
        except OSError:
            anew, self.offset, self.size = self.offset > 0, 0, 0
        self.more = self.offset < self.size and bool(lines)
        return anew, lines


class FollowedJournal(JournalState):
    """Fills ``rows``. Not thread-safe."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self.rows = rows
        self.invalid: Sequence[int] = ()  # rows of the next run that are known to be so
        self.speeds = SpeedHistory()
        self._bucket: tuple[int, int] | None = None
        self._tail = FileTail(path)
        self._answers = lru_cache(_ANSWERS_KEPT)(self._read_answer)
        super().__init__(path)

    @property
    def part_read(self) -> float:
        """0 to 1."""
        return self._tail.offset / self._tail.size if self._tail.size else 1.0

    @property
    def command(self) -> BatchCommand | None:
        """The last run's command; None if the journal does not say."""
        return noted_command(self.run)

    def read(self) -> bool:
        """Take in the next lines; True when there are more to read at once."""
        anew, lines = self._tail.read()
        if anew:
            self._begin_file()
            self._other_settings()
        for offset, line in lines:
            self.take(offset, line)
        return self._tail.more

    def answer(self, index: int) -> Answer | None:
        """Return a finished row's answer; None for any other row."""
        offset = self.rows.offset(index)
        return None if offset is None else self._answers(index, offset)

    def _read_answer(self, index: int, offset: int) -> Answer | None:
        record = self.record(index)
        return None if record is None else Answer.from_json(record["answer"])

    def record(self, index: int) -> JsonObject | None:
        """A row's last record; None if it has none, or it is not there any more."""
        offset = self.rows.offset(index)
        if offset is None:
            return None
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                record = self.again(offset, file.readline())
        except OSError:
            return None
        return record if record is not None and record.get("index") == index else None

    def _other_settings(self) -> None:
        super()._other_settings()
        self.rows.forget()
        self._answers.cache_clear()

    def _run(self, record: JsonObject) -> None:
        super()._run(record)
        self.speeds, self._bucket = SpeedHistory(), None
        # A journal may have any number of runs: their commands are not taken apart here.
        self.rows.begin_run(keep_failures="--skip-failed" in (record.get("command") or ()))
        self.rows.grow(record.get("input_rows", 0))
        self.rows.set_invalid(self.invalid)

    def _row(self, record: JsonObject, offset: int) -> None:
        before = self.output_tokens
        super()._row(record, offset)
        answer = record["answer"]
        usage, timings = answer.get("usage") or {}, answer.get("timings") or {}
        tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        speed = timings.get("decode_tps") or 0.0
        self.rows.finish(record["index"], offset, good=record["ok"], tokens=tokens, speed=speed)
        if record["ok"]:
            self._add_speed(answer.get("created", self.last), self.output_tokens - before)

    def _add_speed(self, at: float, tokens: int) -> None:
        """Sum answers up over a few seconds: a journal has no speeds, only what was finished."""
        number = int(max(0.0, at - self.run["at"]) / _BUCKET_S) if self.run else 0
        begun, total = self._bucket or (number, 0)
        if number > begun:
            self.speeds.add(SpeedAt((begun + 1) * _BUCKET_S, 0.0, total / _BUCKET_S))
            begun, total = number, 0
        self._bucket = begun, total + tokens


def events_of(tail: FileTail) -> Iterator[JsonObject]:
    """The next events of a file; a line that is none is left out."""
    while lines := tail.read()[1]:
        for _, line in lines:
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def _speed(event: JsonObject) -> SpeedAt:
    return SpeedAt(event["elapsed_s"], event["prefill_tps_now"], event["decode_tps_now"])


def kept_speeds(path: Path) -> tuple[SpeedAt, ...]:
    """The speeds in the events of a run that has ended."""
    speeds = SpeedHistory()
    for event in events_of(FileTail(path, last=_LAST_EVENTS)):
        if event.get("event") == "progress":
            speeds.add(_speed(event))
    return speeds.points()


class EventFeed:
    """The latest events of a run; ``journal`` is told which rows are running, or not valid."""

    def __init__(self, path: Path, journal: FollowedJournal) -> None:
        self.begin: JsonObject | None = None
        self.progress: JsonObject | None = None
        self.end: JsonObject | None = None
        self.notes: list[str] = []
        self.speeds = SpeedHistory()
        self._journal = journal
        self._run_before = journal.run
        self._tail = FileTail(path, last=_LAST_EVENTS)

    @property
    def run(self) -> JsonObject | None:
        """The journal's note on this run; None while it still has that on the one before."""
        run = self._journal.run
        return None if run is self._run_before else run

    def read(self) -> None:
        """Take in all that is new."""
        rows = self._journal.rows
        for event in events_of(self._tail):
            kind = event.get("event")
            if kind == "begin":
                self.begin = event
                self._journal.invalid = event.get("invalid_rows", ())
                rows.grow(event.get("input_rows", 0))
                rows.set_invalid(self._journal.invalid)
            elif kind == "progress":
                self.progress = event
                rows.set_running(event.get("working", ()))
                self.speeds.add(_speed(event))
            elif kind == "end":
                self.end = event
            elif kind == "note" and len(self.notes) < _NOTES:
                self.notes.append(str(event.get("text", "")))


_END = 1 << 16  # bytes of a log that has its last event


# How long a job may take, by the speeds of an earlier one with the same model and slots.


@dataclass(frozen=True, slots=True)
class TimeLike:
    """At most so long, if it is as fast as the job of ``output`` was."""

    seconds: float
    output: Path


def time_like(found: JsonObject) -> TimeLike | None:
    """``found`` is what a dry run tells: prompts one after another, answers of all slots together.
    None when no such job was started here. Reads files: call it in a thread."""
    for record in records():
        end = _end(record.events)
        fits = all(end.get(name) == found[name] for name in ("model", "slots"))
        if fits and not end.get("engines") and end["prefill_tps"] > 0 and end["decode_tps"] > 0:
            seconds = found["prompt_tokens"] / end["prefill_tps"]
            seconds += found["most_answer_tokens"] / end["decode_tps"]
            return TimeLike(seconds, record.output)
    return None


def _end(events: Path) -> JsonObject:
    """The last event of a run that told how it ended; empty if it did not."""
    found = deque(events_of(FileTail(events, last=_END)), 1)
    last = found[0] if found else {}
    return last if last.get("event") == "end" else {}


# Words looked for in the answers and errors of a job.


class RowSearch:
    """``found`` grows while ``read`` goes through the journal, which may still be written to. May
    be called from any thread."""

    def __init__(self, journal: FollowedJournal, text: str) -> None:
        self.words = text.casefold().split()
        self.found: set[int] = set()
        self._journal = journal
        self._tail = FileTail(journal.path)
        self._lock = threading.Lock()

    def read(self) -> bool:
        """Look at the next lines, for some milliseconds; True when there are more."""
        with self._lock:
            anew, lines = self._tail.read()
            if anew:
                self.found.clear()
            for offset, line in lines:
                record = self._journal.again(offset, line)
                if record is None or "ingot" in record:
                    continue
                text = text_of(Answer.from_json(record["answer"])).casefold()
                self.found.discard(record["index"])
                if all(word in text for word in self.words):
                    self.found.add(record["index"])
            return self._tail.more


def text_of(answer: Answer) -> str:
    """Text of a row in a list: its answer, or its error."""
    if answer.error is not None:
        return f"{answer.error.code}: {answer.error.message}"
    return answer.response or ""
