"""A job at one moment, ready to be shown."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from app.batch.journal.lines import LOST, told
from app.batch.report.eta import Left, left_of
from app.batch.report.summary import Summary
from app.batch.watch.follow import EventFeed, FollowedJournal
from app.batch.watch.rows import SpeedAt
from app.figures import duration, rate

# What only the process itself knows, as its events name it; and what of it ends with the process.
_NOW = ("prefill_tps_now", "decode_tps_now", "memory_bytes")
_MEASURED = ("running", "slots", "prefill_tps", "decode_tps", "kv_tokens", "kv_capacity", *_NOW)
_KEPT = "every finished row is kept, and resuming computes none of them again"


class Phase(StrEnum):
    """What a job does, or how it ended; the values are for people."""

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


@dataclass(frozen=True, slots=True)
class JobView:
    """Rates are tokens a second. Of a job that is not ``own`` only the journal is known."""

    output: str
    phase: Phase
    own: bool  # started from here, and can be paused
    rows: int = 0
    done: int = 0  # need nothing more
    failed: int = 0  # of them
    cached: int = 0  # of them: answered by an earlier run
    running: int | None = None
    reading: int = 0  # of those that run: whose prompts are read
    slots: int | None = None
    elapsed_s: float = 0.0
    left: Left | None = None
    prefill_tps_now: float | None = None
    prefill_tps: float | None = None
    decode_tps_now: float | None = None
    decode_tps: float | None = None
    kv_tokens: int | None = None
    kv_capacity: int | None = None
    memory_bytes: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    output_tokens: int = 0
    part_read: float = 1.0  # of the journal
    speeds: tuple[SpeedAt, ...] = ()
    lines: tuple[str, ...] = ()  # how it ended, or what is wrong
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """What it does, and how long it takes yet or took, in a few words."""
        if self.part_read < 1 and self.phase is not Phase.RUNNING:
            return f"reading the journal ({100 * self.part_read:.0f}%)"
        watched = "" if self.own or not self.phase.active else "watched"
        time = duration(self.elapsed_s) if self.elapsed_s else ""
        if self.phase.active and time:
            time = str(self.left) if self.left is not None else f"{time} so far"
        return " · ".join(filter(None, (str(self.phase), watched, time)))


def view_of(
    empty: JobView,
    journal: FollowedJournal,
    events: EventFeed | None,
    now: float,
    *,
    kept: tuple[SpeedAt, ...],
    code: int | None,
    said: str,
) -> JobView:
    """``empty`` says which job it is and what it does; ``events`` are None for one that was not
    started from here, ``kept`` the speeds that one of before told; ``code`` and ``said`` are the
    exit code and the last words of one that was started from here. ``now`` is in Unix seconds."""
    phase, run = empty.phase, journal.run
    begin, progress, end = None, None, None
    notes: list[str] = []
    if events is not None:
        begin, progress, end, notes = events.begin, events.progress, events.end, [*events.notes]
        if end is None:
            run = events.run
    if begin is None:  # what its own process told is not said twice
        notes += told(journal.path, journal.damaged, LOST)
    values: dict[str, Any] = {"part_read": journal.part_read, "notes": tuple(notes)}
    values["lines"] = tuple(_lines(phase, journal, end, code, said))
    if run is not None:
        elapsed = _elapsed(journal, run, now if phase.active else None)
        failed = int(run["invalid"]) + journal.failed
        values |= {
            "rows": int(run["rows"]),
            "done": int(run["reused"]) + journal.done + failed,
            "failed": failed,
            "cached": int(run["reused"]),
            "elapsed_s": elapsed,
            "prompt_tokens": journal.prompt_tokens,
            "output_tokens": journal.output_tokens,
            "cached_tokens": journal.cached_tokens,
            "speeds": kept or journal.speeds.points(),
            "decode_tps": journal.output_tokens / elapsed,
            "decode_tps_now": journal.rates(now)[1] if phase.active else None,
        }
    elif begin is not None:
        values |= {name: begin[name] for name in ("rows", "failed", "cached")}
        values["done"] = begin["cached"] + begin["failed"]
    if phase.active:
        values["left"] = journal.left_at(now) if events is None else left_of(progress or {})
    if progress is not None and events is not None:
        values |= {name: progress[name] for name in _MEASURED}
        values["reading"] = min(progress.get("reading", 0), progress["running"])
        if not phase.active:
            values |= dict.fromkeys(_NOW, None) | {"running": 0, "reading": 0, "kv_tokens": 0}
        values["speeds"] = events.speeds.points()
    if end is not None:
        values |= {name: end[name] for name in ("prefill_tps", "decode_tps")}
    return replace(empty, **values)


def _elapsed(journal: FollowedJournal, run: dict[str, Any], now: float | None) -> float:
    """Seconds of the run, which ended with its last row if not ``now``."""
    begun = float(run["at"])
    return max((max(journal.last, begun) if now is None else now) - begun, 1e-3)


def _lines(
    phase: Phase,
    journal: FollowedJournal,
    end: dict[str, Any] | None,
    code: int | None,
    said: str,
) -> list[str]:
    run = journal.run
    match phase:
        case Phase.FAILED:
            return (said or f"it ended with exit code {code}").splitlines()
        case Phase.DIED:
            how = f"by signal {-code}" if code is not None and code < 0 else "or its machine was"
            return [f"its process was killed ({how}); {_KEPT}"]
        case Phase.STOPPED | Phase.PAUSED | Phase.DONE if end is not None:
            return Summary.from_json(end).lines()
        case Phase.DONE if run is not None:
            elapsed = _elapsed(journal, run, None)
            return [
                f"{journal.prompt_tokens:,} prompt and {journal.output_tokens:,} answer tokens in "
                f"{duration(elapsed)}: {rate(journal.output_tokens / elapsed)} overall"
            ]
        case Phase.ELSEWHERE if run is not None:
            return [f"started on {run.get('host')}; whether it still runs is not known here"]
        case _:
            return []
