"""What a job did, as a sentence for people and as an object for programs; the file of `--report`,
which adds what it ran on."""

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
from typing import Any, Literal, Self

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import LOST, told
from app.batch.journal.state import read_state
from app.batch.output.records import writing
from app.batch.report.eta import Left, left_json
from app.batch.report.figures import Energy, EngineFigures
from app.batch.settings import JobSettings
from app.figures import duration, rate, rounded
from app.here import same_file
from quantize.disk import check_outfile, outfile
from runtimes.engine.metrics import EngineStats
from runtimes.errors import RequestError


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one run. Tokens, times and rates are of its own work; ``prefill_tps`` and
    ``decode_tps`` are over the time that each took."""

    rows: int
    answered: int
    failed: int
    reused: int  # were in the journal already
    unfinished: int  # left for the next run
    retried: int = 0
    crashes: int = 0  # deaths of the worker process
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    load_s: float = 0.0
    run_s: float = 0.0
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    slots: int = 0
    memory_bytes: int = 0
    model: str = ""
    runtime: str = ""
    ended: str | None = None  # what ended it early
    errors: dict[str, int] = field(default_factory=dict)
    engines: tuple[EngineFigures, ...] = ()  # if there are several
    energy: Energy | None = None  # of GPUs, where they tell
    stats: EngineStats | None = None  # of the engines; None when no row needed them

    @property
    def output_tps(self) -> float:
        """Answer tokens per second of wall time."""
        return self.completion_tokens / self.run_s if self.run_s > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """For ``--json`` and ``--report``."""
        values = {**asdict(self), "output_tps": self.output_tps}
        values["engines"] = [engine.as_json() for engine in self.engines]
        del values["stats"]
        return rounded(values, 3)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``as_json`` made."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        engines = tuple(EngineFigures(**engine) for engine in values.get("engines", ()))
        energy = Energy.from_json(values["energy"]) if values.get("energy") else None
        return cls(**(known | {"engines": engines, "energy": energy}))

    def lines(self) -> list[str]:
        """The rows, what their computing took, and the errors that there were."""
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
                f"tokens in {duration(self.run_s)}: prefill {rate(self.prefill_tps)}, decode "
                f"{rate(self.decode_tps)}, {rate(self.output_tps)} overall "
                f"({self.slots} slots, {self.model} on {self.runtime})"
            )
        lines += [engine.line() for engine in self.engines]
        if self.energy is not None:
            lines.append(self.energy.line())
        if self.errors:
            said = ", ".join(f"{count:,} {code}" for code, count in self.errors.items())
            lines.append(f"errors: {said}")
        if self.crashes:
            lines.append(
                f"the worker process died {self.crashes} times; "
                f"{self.errors.get('worker_crash', 0)} rows were to blame"
            )
        return lines


def report_of(
    summary: Summary, settings: JobSettings, *, input: str, output: str
) -> dict[str, Any]:
    """The file of `--report`: ``summary`` has the rows and rates, ``settings`` what decides the
    answers, ``engine`` the engine's own figures at the end (null when no row needed the model)."""
    return {
        "input": input,
        "output": output,
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "summary": summary.as_json(),
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


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Put the report in place in one step. Raises RequestError or OutOfMemoryError."""
    with writing(path), outfile(path) as partial:
        partial.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


# `ingot batch status OUT`: how far a job is, from its journal alone.


@dataclass(frozen=True, slots=True)
class Status:
    """Rates are of the run so far, and over its last minute."""

    output: str
    state: Literal["running", "finished", "stopped"]  # stopped: with rows left
    rows: int
    done: int  # have an answer
    cached: int  # of them from earlier runs
    failed: int  # have an error
    left: int  # have neither
    shard: str | None
    elapsed_s: float
    rows_per_s: float
    rows_per_s_now: float
    decode_tps: float
    decode_tps_now: float
    time_left: Left | None
    notes: tuple[str, ...] = ()  # what is damaged in the journal

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        values = asdict(self)
        del values["time_left"]
        return rounded(values, 3) | left_json(self.time_left)

    def lines(self) -> list[str]:
        """For people."""
        part = f" (part {self.shard})" if self.shard else ""
        counts = (
            f"{self.output}{part}: {self.state}; {self.rows:,} rows: {self.done:,} done "
            f"({self.cached:,} cached), {self.failed:,} failed, {self.left:,} left"
        )
        if not self.rows_per_s:
            return [counts, *self.notes]
        decode, elapsed = rate(self.decode_tps), duration(self.elapsed_s)
        pace = f"{self.rows_per_s:.2f} rows/s and {decode} in {elapsed}"
        if self.state == "running":
            pace += (
                f"; in the last minute {self.rows_per_s_now:.2f} rows/s and "
                f"{rate(self.decode_tps_now)}"
            )
        if self.time_left is not None:
            pace += f"; {self.time_left}"
        return [counts, pace, *self.notes]


def status_of(out: Path) -> Status:
    """Reads what another process may be writing. Raises RequestError when there is no job."""
    path = journal_path(out)
    if not path.is_file():
        raise RequestError(f"{out}: no job here (there is no {path.name})")
    journal = read_state(path)
    run = journal.run
    if run is None:
        raise RequestError(f"{path} has no run yet: the model is being loaded, or never was")
    failed, done = journal.failed + run["invalid"], journal.done + run["reused"]
    left = max(0, run["rows"] - done - failed)
    running = journal.running
    now = time.time() if running else journal.last
    elapsed = max(now - run["at"], 1e-3)
    rows_now, decode_now = journal.rates(now)
    return Status(
        output=str(out),
        state="running" if running else "stopped" if left else "finished",
        rows=run["rows"],
        done=done,
        cached=run["reused"],
        failed=failed,
        left=left,
        shard=run.get("shard"),
        elapsed_s=elapsed,
        rows_per_s=journal.done / elapsed,
        rows_per_s_now=rows_now,
        decode_tps=journal.output_tokens / elapsed,
        decode_tps_now=decode_now,
        time_left=journal.left_at(now) if running and left else None,
        notes=tuple(told(path, journal.damaged, LOST)),
    )
