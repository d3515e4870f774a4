"""`ingot batch status OUT`: how far a job is, from its journal alone."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from app.batch.journal.journal import journal_path
from app.batch.journal.lines import LOST, told
from app.batch.journal.state import read_state
from app.batch.report.time_left import Left, left_json
from app.figures import duration, rate, rounded
from runtimes.errors import RequestError


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
