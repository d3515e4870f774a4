"""`ingot batch status OUT`: how far a job is, from its journal alone."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from app.batch.journal import journal_path
from app.batch.runlog import read_runs
from app.figures import duration, rate
from runtimes.errors import RequestError

State = Literal["running", "finished", "stopped"]

_RECENT_S = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """``done`` rows have an answer, ``cached`` of them from earlier runs; ``failed`` rows an error;
    ``left`` rows neither. A job is ``stopped`` when its process is gone and rows are left. Rates
    are per second: of the run so far, and over its last minute."""

    output: str
    state: State
    rows: int
    done: int
    cached: int
    failed: int
    left: int
    shard: str | None
    elapsed_s: float
    rows_per_s: float
    rows_per_s_now: float
    decode_tps: float
    decode_tps_now: float
    left_s: float | None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }

    def lines(self) -> list[str]:
        """For people."""
        part = f" (part {self.shard})" if self.shard else ""
        counts = (
            f"{self.output}{part}: {self.state}; {self.rows:,} rows: {self.done:,} done "
            f"({self.cached:,} cached), {self.failed:,} failed, {self.left:,} left"
        )
        if not self.rows_per_s:
            return [counts]
        decode, elapsed = rate(self.decode_tps), duration(self.elapsed_s)
        pace = f"{self.rows_per_s:.2f} rows/s and {decode} in {elapsed}"
        if self.state == "running":
            pace += (
                f"; in the last minute {self.rows_per_s_now:.2f} rows/s and "
                f"{rate(self.decode_tps_now)}"
            )
        if self.left_s is not None:
            pace += f"; about {duration(self.left_s)} left"
        return [counts, pace]


def status_of(out: Path) -> Status:
    """Reads what another process may be writing. Raises RequestError when there is no job."""
    path = journal_path(out)
    if not path.is_file():
        raise RequestError(f"{out}: no job here (there is no {path.name})")
    log = read_runs(path)
    run = log.run
    if run is None:
        raise RequestError(f"{path} tells of no run yet: the model is being loaded, or never was")
    failed = log.failed + run["invalid"]
    done = log.done + run["reused"]
    left = max(0, run["rows"] - done - failed)
    running = log.running
    now = time.time() if running else max(log.last, run["at"])
    elapsed = max(now - run["at"], 1e-3)
    recent = min(_RECENT_S, elapsed)
    pace = (log.done + log.failed) / elapsed
    return Status(
        output=str(out),
        state="running" if running else "stopped" if left else "finished",
        rows=run["rows"],
        done=done,
        cached=run["reused"],
        failed=failed,
        left=left,
        shard=run["shard"],
        elapsed_s=elapsed,
        rows_per_s=log.done / elapsed,
        rows_per_s_now=log.recent_rows / recent,
        decode_tps=log.tokens / elapsed,
        decode_tps_now=log.recent_tokens / recent,
        left_s=left / pace if running and left and pace else None,
    )
