"""Figures of a job (``JobFigures``), running or ended, and their forms: the bar and lines on
stderr, events, the summary, `ingot batch status`, the file of `--report`. Measures nothing."""

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from app import console
from app.batch.journal.journal import journal_path
from app.batch.journal.lines import LOST, JournalState, read_state, told
from app.batch.output.records import writing
from app.batch.report.eta import Left, left_json
from app.batch.settings import JobSettings
from app.figures import duration, rate, rounded
from app.here import same_file
from quantize.disk import check_outfile, outfile
from runtimes.engine.metrics import EngineStats
from runtimes.errors import RequestError
from runtimes.untrusted import Fields, JsonObject

# Names and order of the values of a ``progress`` event, of the ``end`` event (and --report), and of
# the status.
_PROGRESS = (
    "rows done cached failed running slots elapsed_s time_left prefill_tps_now prefill_tps"
    " decode_tps_now decode_tps kv_tokens kv_capacity memory_bytes draining working engines reading"
).split()
_END = (
    "rows answered failed reused unfinished retried crashes prompt_tokens cached_tokens"
    " completion_tokens load_s elapsed_s prefill_tps decode_tps slots memory_bytes model runtime"
    " ended errors engines energy output_tps advice"
).split()
_STATUS = (
    "output state rows answered cached failed unfinished shard elapsed_s rows_per_s rows_per_s_now"
    " decode_tps decode_tps_now notes"
).split()


def alike(kind: Any, *sources: object) -> JsonObject:
    """Values of the fields of ``kind`` that ``sources`` have by the same names; of two sources the
    latter's."""
    names = [one.name for one in fields(kind)]
    return {name: getattr(one, name) for one in sources for name in names if hasattr(one, name)}


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine; rates are tokens a second over the time that each took."""

    name: str
    where: str
    state: str
    slots: int
    running: int
    rows: int  # that it finished; failed ones and tokens are of these
    failed: int
    crashes: int  # deaths of its process
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_tps: float
    decode_tps: float
    decode_tps_now: float

    def as_json(self) -> JsonObject:
        """For `--json` and `--report`."""
        return rounded(asdict(self), 1)

    def line(self) -> str:
        """For people, at the end."""
        times = "once" if self.crashes == 1 else f"{self.crashes} times"
        died = f", died {times}" if self.crashes else ""
        lost = ", left out since" if self.state == "lost" else ""
        where = f" ({self.where})" if self.where else ""
        return (
            f"{self.name}{where}: {self.rows:,} rows, {self.completion_tokens:,} answer tokens, "
            f"decode {rate(self.decode_tps)}{died}{lost}"
        )


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of all GPUs that the job could use, with what else they did."""

    joules: float
    watts: float  # the mean of all of them together
    tokens_per_joule: float | None  # of answers
    gpus: tuple[str, ...]
    measured: str  # how

    def line(self) -> str:
        """For people, at the end."""
        tokens = self.tokens_per_joule
        said = "" if tokens is None else f", {tokens:.3g} answer tokens per joule"
        return f"GPU energy: {self.joules:,.0f} J ({self.watts:,.0f} W){said}; {self.measured}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFigures:
    """Work of the smaller of a job's two models."""

    model: str = ""
    agree: float
    confidence: float
    sampled: int = 0  # rows that both have answered
    threshold: float | None = None  # of certainty; None where none is high enough
    tried: int = 0  # of the sampled rows, those that are as sure; of the surest tenth if none is
    alike: int = 0  # of these, with the same answer from both
    kept: int = 0  # rows whose answer is the smaller model's
    saved_s: float | None = None  # by the time that this run took for a row; None where unknown

    def line(self, rows: int, model: str) -> str:
        """For people, at the end of a job of so many rows, most of them for ``model``."""
        if not self.tried:
            return f"{self.model} keeps no answer: there are too few rows to learn from"
        both = f"{self.alike:,} of {self.tried:,} rows that both answered"
        if self.threshold is None:
            return f"{self.model} keeps no answer: of its surest, {both} were as {model}'s"
        saved = ""
        if self.saved_s is not None:
            saved = (
                f"; it saved {duration(self.saved_s)}" if self.saved_s > 0 else "; no time saved"
            )
        return (
            f"{self.kept:,} of {rows:,} answers are {self.model}'s: of answers as sure, at least"
            f" {100 * self.agree:g}% are as {model}'s, {100 * self.confidence:g}% certain"
            f" ({both} were){saved}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of one run of a job. None: unknown, as where only the journal is known.

    Tokens, times and rates are of the run's own work; rates are tokens a second over the time that
    each phase took, those that end in ``_now`` over the last moments.
    """

    rows: int = 0
    answered: int = 0  # by an earlier run too
    failed: int = 0  # by an earlier run too, and invalid rows
    cached: int = 0  # of the answered ones: by an earlier run
    reused: int = 0  # the cached ones, and failures of an earlier run that stay
    retried: int = 0
    crashes: int = 0  # deaths of the worker process
    errors: Mapping[str, int] = field(default_factory=dict)  # failures by their code
    running: int | None = None
    reading: int = 0  # of those running: their prompts are read
    working: tuple[int, ...] = ()  # indexes of the rows with a slot
    slots: int | None = None
    draining: bool = False
    compiling: bool = False  # all else waits for that
    load_s: float = 0.0
    elapsed_s: float = 0.0
    time_left: Left | None = None  # None before anything can be said
    prefill_tps_now: float | None = None
    prefill_tps: float | None = None
    decode_tps_now: float | None = None
    decode_tps: float | None = None
    rows_per_s: float = 0.0
    rows_per_s_now: float = 0.0
    kv_tokens: int | None = None  # in the slots
    kv_capacity: int | None = None
    memory_bytes: int | None = None  # of all processes; at the end, the most
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    completion_tokens: int = 0
    engines: tuple[EngineFigures, ...] = ()  # if there are several
    energy: Energy | None = None  # of GPUs, where they tell
    advice: str | None = None  # what would have been faster
    first: FirstFigures | None = None  # of a job of two models
    stats: EngineStats | None = None  # of the engines; None when no row needed them
    model: str = ""
    runtime: str = ""
    ended: str | None = None  # "signal" or "time", which ended it early
    output: str = ""
    shard: str | None = None
    notes: tuple[str, ...] = ()  # on damage of the journal

    @property
    def done(self) -> int:
        """Rows that need nothing more."""
        return self.answered + self.failed

    @property
    def answered_here(self) -> int:
        """Rows that this run answered."""
        return self.answered - self.cached

    @property
    def unfinished(self) -> int:
        """Rows that are left for the next run."""
        return max(0, self.rows - self.done)

    @property
    def output_tps(self) -> float:
        """Answer tokens per second of wall time."""
        return self.completion_tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    # While it runs

    @property
    def left_text(self) -> str:
        """Time left, for people."""
        if self.compiling:
            return console.COMPILING
        return "estimating the time" if self.time_left is None else str(self.time_left)

    @property
    def speeds_text(self) -> str:
        """Prefill and decode, now and overall."""
        return (
            f"prefill {rate(self.prefill_tps_now or 0.0)} (all {rate(self.prefill_tps or 0.0)}), "
            f"decode {rate(self.decode_tps_now or 0.0)} (all {rate(self.decode_tps or 0.0)})"
        )

    @property
    def occupancy_text(self) -> str:
        """Engines if there are several, slots, keys and values, memory."""
        kv = self.kv_tokens or 0
        used = 100 * kv / self.kv_capacity if self.kv_capacity else 0.0
        able = sum(engine.state == "ready" for engine in self.engines)
        engines = f"engines {able}/{len(self.engines)}, " if self.engines else ""
        return (
            f"{engines}slots {self.running}/{self.slots}, KV {kv:,} tokens "
            f"({used:.0f}%), memory {(self.memory_bytes or 0) / 2**30:.2f} GiB"
        )

    def progress_json(self) -> JsonObject:
        """Values of a ``progress`` event."""
        values: JsonObject = {}
        for name in _PROGRESS:
            value = getattr(self, name)
            values |= left_json(value) if name == "time_left" else {name: value}
        values["engines"] = [engine.as_json() for engine in self.engines]
        if not self.engines:
            del values["engines"]
        return rounded(values, 1) | {"elapsed_s": round(self.elapsed_s, 3)}

    # When it has ended

    def end_json(self) -> JsonObject:
        """Values of the ``end`` event, and of the summary in `--report`."""
        values = {"run_s" if n == "elapsed_s" else n: getattr(self, n) for n in _END}
        values["errors"] = dict(self.errors)
        values["engines"] = [engine.as_json() for engine in self.engines]
        values["energy"] = None if self.energy is None else asdict(self.energy)
        first = {} if self.first is None else {"first": asdict(self.first)}
        return rounded(values, 3) | first

    @classmethod
    def from_end(cls, values: Fields) -> Self:
        """Figures of an ``end`` event."""
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        known["elapsed_s"] = values.get("run_s", 0.0)
        known["engines"] = tuple(EngineFigures(**engine) for engine in values.get("engines", ()))
        if energy := values.get("energy"):
            known["energy"] = Energy(**{**energy, "gpus": tuple(energy["gpus"])})
        if first := values.get("first"):
            known["first"] = FirstFigures(**first)
        return cls(**known)

    def end_lines(self) -> list[str]:
        """Rows, speeds, energy and errors, for people."""
        counts = f"{self.rows:,} rows: {self.answered:,} answered"
        if self.reused:
            counts += f" ({self.reused:,} of them earlier)"
        if self.failed:
            counts += f", {self.failed:,} failed"
        if self.unfinished:
            counts += f", {self.unfinished:,} to do"
        lines = [counts]
        if self.slots:
            cached = f" ({self.cached_tokens:,} of them cached)" if self.cached_tokens else ""
            lines.append(
                f"{self.prompt_tokens:,} prompt{cached} and {self.completion_tokens:,} answer "
                f"tokens in {duration(self.elapsed_s)}: prefill {rate(self.prefill_tps or 0.0)}, "
                f"decode {rate(self.decode_tps or 0.0)}, {rate(self.output_tps)} overall "
                f"({self.slots} slots, {self.model} on {self.runtime})"
            )
        if self.first is not None:
            lines.append(self.first.line(self.rows, self.model))
        lines += [engine.line() for engine in self.engines]
        if self.energy is not None:
            lines.append(self.energy.line())
        if self.advice is not None:
            lines.append(f"faster: {self.advice}")
        if self.errors:
            said = ", ".join(f"{count:,} {code}" for code, count in self.errors.items())
            lines.append(f"errors: {said}")
        if self.crashes:
            lines.append(
                f"the worker process died {self.crashes} times; "
                f"{self.errors.get('worker_crash', 0)} rows were to blame"
            )
        return lines


# From its journal alone


def journal_figures(journal: JournalState, run: Fields, now: float | None) -> JsonObject:
    """Return the values of ``JobFigures`` that a journal has on its last ``run``, which ended with
    its last row if not ``now``."""
    begun = float(run["at"])
    elapsed = max((max(journal.last, begun) if now is None else now) - begun, 1e-3)
    rows_now, decode_now = journal.rates(journal.last if now is None else now)
    return {
        "rows": run["rows"],
        "answered": run["reused"] + journal.done,
        "failed": run["invalid"] + journal.failed,
        "cached": run["reused"],
        "shard": run.get("shard"),
        "elapsed_s": elapsed,
        "rows_per_s": journal.done / elapsed,
        "rows_per_s_now": rows_now,
        "decode_tps": journal.output_tokens / elapsed,
        "decode_tps_now": decode_now,
        "prompt_tokens": journal.prompt_tokens,
        "cached_tokens": journal.cached_tokens,
        "completion_tokens": journal.output_tokens,
        "time_left": None if now is None else journal.left_at(now),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(JobFigures):
    """Figures that `ingot batch status` shows."""

    state: str  # running, finished, or stopped: with rows left

    def as_json(self) -> JsonObject:
        """For ``--json``."""
        names = {"answered": "done", "unfinished": "left"}
        values = {names.get(name, name): getattr(self, name) for name in _STATUS}
        return rounded(values, 3) | left_json(self.time_left)

    def lines(self) -> list[str]:
        """For people."""
        part = f" (part {self.shard})" if self.shard else ""
        counts = (
            f"{self.output}{part}: {self.state}; {self.rows:,} rows: {self.answered:,} done "
            f"({self.cached:,} cached), {self.failed:,} failed, {self.unfinished:,} left"
        )
        if not self.rows_per_s:
            return [counts, *self.notes]
        decode, elapsed = rate(self.decode_tps or 0.0), duration(self.elapsed_s)
        pace = f"{self.rows_per_s:.2f} rows/s and {decode} in {elapsed}"
        if self.state == "running":
            pace += (
                f"; in the last minute {self.rows_per_s_now:.2f} rows/s and "
                f"{rate(self.decode_tps_now or 0.0)}"
            )
        if self.time_left is not None:
            pace += f"; {self.time_left}"
        return [counts, pace, *self.notes]


def status_of(out: Path) -> JobStatus:
    """Read a journal that another process may be writing. Raises RequestError when there is no
    job."""
    path = journal_path(out)
    if not path.is_file():
        raise RequestError(f"{out}: no job here (there is no {path.name})")
    journal = read_state(path)
    run = journal.run
    if run is None:
        raise RequestError(f"{path} has no run yet: the model is being loaded, or never was")
    running = journal.running
    figures = journal_figures(journal, run, time.time() if running else None)
    left = figures["rows"] > figures["answered"] + figures["failed"]
    return JobStatus(
        **(figures if left else figures | {"time_left": None}),
        output=str(out),
        state="running" if running else "stopped" if left else "finished",
        notes=tuple(told(path, journal.damaged, LOST)),
    )


# The file of --report


def check_report(path: Path, used: Mapping[str, Path]) -> None:
    """Raises RequestError where the report cannot be written, or would replace one of the files
    that the job uses, before any work is done for it."""
    try:
        check_outfile(path)
    except OSError as error:
        said = error.strerror or error
        raise RequestError(f"--report: {path} cannot be written: {said}") from error
    for name, other in used.items():
        if same_file(path, other):
            raise RequestError(f"--report and {name} are the same file; name another")


def write_report(
    path: Path, summary: JobFigures, settings: JobSettings, *, input: str, output: str
) -> None:
    """Put the file of `--report` in place in one step: ``summary`` has the rows and rates,
    ``settings`` what decides the answers, ``engine`` the engine's own figures at the end (null when
    no row needed the model). Raises RequestError or OutOfMemoryError."""
    report = {
        "input": input,
        "output": output,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "summary": summary.end_json(),
        "settings": settings.as_json(),
        "engine": None if summary.stats is None else rounded(asdict(summary.stats), 6),
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        },
        "command": sys.argv[1:],
    }
    with writing(path), outfile(path) as partial:
        partial.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
