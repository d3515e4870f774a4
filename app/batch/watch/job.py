"""One job (started, followed, paused, resumed; or one that runs elsewhere, followed only), and what
a screen shows of it (``JobView``)."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import LOST, told
from app.batch.report.eta import left_of
from app.batch.report.figures import JobFigures, journal_figures
from app.batch.spec import BatchSpec
from app.batch.watch import process, records
from app.batch.watch.follow import EventFeed, FollowedJournal, kept_speeds
from app.batch.watch.process import BatchCommand, Foreign, JobProcess, foreign, noted_command
from app.batch.watch.records import JobRecord
from app.batch.watch.rows import By, Rows, RowState, SpeedAt, Which
from app.exitcodes import ExitCode
from app.figures import duration, rate
from app.openai.answer import Answer
from runtimes.errors import RequestError
from runtimes.untrusted import JsonObject

# What only the process itself knows, as its events name it; and what of it ends with the process.
_NOW = "prefill_tps_now decode_tps_now memory_bytes".split()
_MEASURED = [*"running reading slots prefill_tps decode_tps kv_tokens kv_capacity".split(), *_NOW]
_KEPT = "every finished row is kept, and resuming computes none of them again"


class Phase(StrEnum):
    """State of a job; the values are for people."""

    STARTING = "reading the input"
    LOADING = "loading the model"
    RUNNING = "running"
    PAUSING = "pausing: running rows are finished"
    STOPPING = "stopping"
    WRITING = "writing the output"
    PAUSED = "paused"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    DIED = "killed"
    ELSEWHERE = "on another machine"

    @property
    def active(self) -> bool:
        """Whether its process is at work."""
        ended = (Phase.PAUSED, Phase.STOPPED, Phase.DONE, Phase.FAILED, Phase.DIED, Phase.ELSEWHERE)
        return self not in ended


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView(JobFigures):
    """Figures of a job as a screen shows them. Of a job that is not ``own`` only the journal is
    known."""

    phase: Phase
    own: bool  # started from here, and can be paused
    part_read: float = 1.0  # of the journal
    speeds: tuple[SpeedAt, ...] = ()
    lines: tuple[str, ...] = ()  # how it ended, or what is wrong

    @property
    def state(self) -> str:
        """Phase and time left or taken, in a few words."""
        if self.part_read < 1 and self.phase is not Phase.RUNNING:
            return f"reading the journal ({100 * self.part_read:.0f}%)"
        watched = "" if self.own or not self.phase.active else "watched"
        time = duration(self.elapsed_s) if self.elapsed_s else ""
        if self.phase.active and time:
            time = str(self.time_left) if self.time_left is not None else f"{time} so far"
        return " · ".join(filter(None, (str(self.phase), watched, time)))


_SIGNALS_APART_S = 0.3
_READS = 16


class JobError(RequestError):
    """An action that a job cannot do in its present state."""


class WatchedJob:
    """``poll`` reads on and may be called from any thread; the rest takes no time."""

    def __init__(
        self,
        output: Path,
        command: BatchCommand | None = None,
        child: JobProcess | None = None,
    ) -> None:
        """See ``start_job`` and ``attach`` below."""
        self.output = records.absolute(output)
        self.command = command
        self.rows = Rows()
        self.journal = FollowedJournal(journal_path(self.output), self.rows)
        self._files = JobRecord(self.output, 0.0)
        self.events = EventFeed(self._files.events, self.journal)
        self._child = child
        self._lock = threading.RLock()
        self._signals = 0
        self._signalled = 0.0
        self._stop = False
        self._phase = Phase.STARTING if child is not None else Phase.STOPPED
        self._kept: tuple[SpeedAt, ...] | None = None  # speeds of a run that had ended before

    @property
    def own(self) -> bool:
        """Whether its process was started from here, so that it can be told to end."""
        return self._child is not None

    @property
    def asked(self) -> BatchSpec | None:
        """The spec of its command; None when that is not known."""
        mine, said = self.command, self.journal.command
        command = mine or said if self.own else said or mine
        return None if command is None else command.asked()

    def view(self) -> JobView:
        """How it is, as of the last ``poll``."""
        with self._lock:
            known = self._known()
            return JobView(output=str(self.output), phase=self._phase, own=self.own, **known)

    def _known(self) -> JsonObject:
        """Values of a ``JobView``: by the journal and, of a job that was started from here, by what
        its process told."""
        journal, events, active = self.journal, self.events, self._phase.active
        begin, progress, end = events.begin, events.progress, events.end
        run = events.run if self.own and end is None else journal.run
        # What its own process told is not said twice.
        damage = told(journal.path, journal.damaged, LOST) if begin is None else ()
        values: JsonObject = {
            "part_read": journal.part_read,
            "notes": (*events.notes, *damage),
            "lines": tuple(self._lines()),
        }
        if run is not None:
            values |= journal_figures(journal, run, time.time() if active else None)
            values["speeds"] = self._kept or journal.speeds.points()
        elif begin is not None:
            values |= {name: begin[name] for name in ("rows", "failed", "cached")}
            values["answered"] = begin["cached"]
        if self.own:
            values["time_left"] = left_of(progress or {}) if active else None
        if progress is not None:
            values |= {name: progress.get(name, 0) for name in _MEASURED}
            values["reading"] = min(values["reading"], values["running"])
            if not active:
                values |= dict.fromkeys(("running", "reading", "kv_tokens"), 0)
            values["speeds"] = events.speeds.points()
        if not active:
            values |= dict.fromkeys(_NOW)
        if end is not None:
            values |= {name: end[name] for name in ("prefill_tps", "decode_tps")}
        return values

    def _lines(self) -> list[str]:
        """How it ended, or what is wrong."""
        run, end, code = self.journal.run, self.events.end, self.exit_code
        match self._phase:
            case Phase.FAILED:
                return (self._last_words() or f"it ended with exit code {code}").splitlines()
            case Phase.DIED:
                ended = f"by signal {-code}" if code is not None and code < 0 else None
                return [f"its process was killed ({ended or 'or its machine was'}); {_KEPT}"]
            case Phase.STOPPED | Phase.PAUSED | Phase.DONE if end is not None:
                return JobFigures.from_end(end).end_lines()
            case Phase.DONE if run is not None:
                figures = JobFigures(**journal_figures(self.journal, run, None))
                return [
                    f"{figures.prompt_tokens:,} prompt and {figures.completion_tokens:,} answer "
                    f"tokens in {duration(figures.elapsed_s)}: {rate(figures.output_tps)} overall"
                ]
            case Phase.ELSEWHERE if run is not None:
                return [f"started on {run.get('host')}; whether it still runs is not known here"]
            case _:
                return []

    def answer(self, index: int) -> Answer | None:
        """Return a finished row's answer; None for any other row."""
        with self._lock:
            return self.journal.answer(index)

    def state(self, index: int) -> RowState:
        """The state of a row."""
        with self._lock:
            return self.rows.state(index)

    def order(self, which: Which, by: By = "row", *, down: bool = False) -> list[int] | range:
        """Rows of a kind in an order; those that are ``live`` have their own: first those running,
        then the latest."""
        with self._lock:
            if which == "live":
                return self.rows.live()
            asked = self.asked
            sharded = asked is not None and asked.out.shard is not None
            return self.rows.order(which, by, down=down, known=sharded)

    def counts(self) -> dict[Which, int]:
        """How many rows of each kind there are."""
        with self._lock:
            return self.rows.counts()

    @property
    def exit_code(self) -> int | None:
        """Exit code of an own process that has ended, if this one started it."""
        return None if self._child is None else self._child.code

    @property
    def signalled(self) -> bool:
        """Whether it was told to end from here."""
        return self._signals > 0

    def poll(self) -> bool:
        """Read what is new; True when there is more to read at once."""
        more = False
        for _ in range(_READS):  # one at a time, so that what is shown never waits long
            with self._lock:
                more = self.journal.read()
            if not more:
                break
        with self._lock:
            # Looked at first: whatever it wrote is there when it has ended.
            alive = self.journal.running if self._child is None else self._child.alive
            if self._child is not None:
                self.events.read()
                # Two signals that come together may count as one.
                apart = time.monotonic() - self._signalled >= _SIGNALS_APART_S
                if self._stop and self._signals == 1 and alive and apart:
                    self._signal(self._child)
            if not more:
                more = self.journal.read()
            self._phase = self._own_phase(alive) if self.own else self._foreign_phase(alive, more)
            if self._phase is Phase.DONE and not more:
                self.rows.close()
            elif not self._phase.active:
                self.rows.set_running(())
            if self._kept is None and not (self.own or more or self._phase.active):
                self._kept = self._speeds_then()
            return more

    def _speeds_then(self) -> tuple[SpeedAt, ...]:
        """Return the speeds that its process told, if the journal's last run was started here."""
        events, run = self._files.events, self.journal.run
        try:
            told = events.stat().st_mtime
        except OSError:
            return ()
        return kept_speeds(events) if run is not None and told >= run["at"] else ()

    def _foreign_phase(self, alive: bool, more: bool) -> Phase:
        run, end = self.journal.run, self.journal.end
        if run is None:
            return Phase.STARTING if more else Phase.STOPPED
        if end is not None:
            return Phase.STOPPED if end.get("unfinished") else Phase.DONE
        if not self.journal.here:
            return Phase.ELSEWHERE
        return self._working(run) if alive else Phase.DIED

    def _own_phase(self, alive: bool) -> Phase:
        events, code = self.events, self.exit_code
        if alive:
            if self._stop:
                return Phase.STOPPING
            if self._signals or (events.progress or {}).get("draining"):
                return Phase.PAUSING
            if events.begin is None:
                return Phase.STARTING
            return Phase.LOADING if events.run is None else self._working(events.run)
        events.read()
        if events.end is not None and not events.end.get("ended"):
            return Phase.DONE
        # Told to end while it loads the model or writes the output, it ends without a word.
        told = self._signals > 0 and code in (None, ExitCode.INTERRUPTED, -signal.SIGTERM)
        if events.end is not None or told:
            return Phase.STOPPED if self._stop else Phase.PAUSED
        # Without an end there was an error, which the command tells, or nobody could.
        failed = code > 0 if code is not None else self._last_words() != ""
        return Phase.FAILED if failed else Phase.DIED

    def _working(self, run: JsonObject) -> Phase:
        journal = self.journal
        done = run["reused"] + run["invalid"] + journal.done + journal.failed
        return Phase.WRITING if done >= run["rows"] else Phase.RUNNING

    def _last_words(self) -> str:
        return process.last_words(self._files.errors) if self.own else ""

    def pause(self) -> None:
        """Finish the running rows and end; ``resume`` continues. Raises JobError."""
        child = self._running()
        with self._lock:
            if not self._signals:
                self._signal(child)

    def stop(self) -> None:
        """End at once: running rows are given up, finished ones are kept. Raises JobError."""
        self.pause()
        self._stop = True

    def resume(self, agreed: Foreign | None = None) -> None:
        """Run the same command again: what has an answer is not computed again. A job that was
        only looked at is an own one from then on.

        A command that was not given here is run only if it is the one that the user has ``agreed``
        to. Raises RequestError, OSError.
        """
        self.poll()
        if self._phase.active:
            raise JobError("this job runs already")
        command = self.resuming()
        if isinstance(command, Foreign):
            if agreed is None or agreed != command:
                raise JobError(f"this was not started from here; look at it first: {command.shown}")
            command = command.command
        with self._lock:
            self._start(command)

    def resuming(self) -> BatchCommand | Foreign:
        """Return the command for ``resume``: the one that was given here, or the journal's, which
        comes with the file and may be anybody's. Raises RequestError where that is no job with
        this output."""
        run = records.last_run(self.journal.path).run or {}
        known = run.get("command") is not None and run.get("folder") is not None
        found = noted_command(run)
        if (mine := self.command) and (not known or (found and found.same_job(mine))):
            return mine.again()
        if not known:
            raise JobError(
                "the journal does not say how this job was started; run its command again"
            )
        return foreign(run, self.output)

    def _running(self) -> JobProcess:
        if self._child is None:
            raise JobError(
                "this job was started elsewhere and can only be watched: end it with Ctrl-C there"
            )
        if not self._child.alive:
            raise JobError("this job does not run")
        return self._child

    def _signal(self, child: JobProcess) -> None:
        child.ask_to_end()
        self._signals += 1
        self._signalled = time.monotonic()

    def _start(self, command: BatchCommand) -> None:
        """Start its process, and save the record by which it is found again."""
        files = self._files
        files.folder.mkdir(parents=True, exist_ok=True)
        for path in (files.events, files.errors):
            path.write_bytes(b"")
        child = process.start(command, files.events, files.errors)
        JobRecord(self.output, time.time(), command, child.pid, child.born).save()
        self.command, self._child = command, child
        self.events = EventFeed(files.events, self.journal)
        self._signals, self._stop = 0, False
        self._kept = None
        self._phase = Phase.STARTING


def start_job(command: BatchCommand) -> WatchedJob:
    """Start a job in a process that outlives this one. Raises JobError when one runs already on
    the same output; OSError when no process can be started."""
    job = WatchedJob(Path(str(command.asked().output)), command)
    record = records.record_of(job.output)
    if record is not None and record.child is not None:
        raise JobError(f"a job runs on {job.output} already; attach to it")
    job._start(command)
    return job


def attach(output: Path) -> WatchedJob:
    """Follow the job of ``output``: as an own one if it was started from here (also by an earlier
    session) and no other process has resumed it since. Raises JobError when there is none."""
    output = records.absolute(output)
    record = records.record_of(output)
    child = None if record is None else record.child
    if not journal_path(output).is_file() and child is None:
        if os.path.exists(output):
            raise JobError(
                f"{output} has no journal beside it, so that nothing is known of its job"
            )
        raise JobError(f"{output}: no job here (there is no {journal_path(output).name})")
    records.seen(output)
    return WatchedJob(output, record.command if record is not None else None, child)
