"""A job at one moment, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from app.batch.report.time_left import Left
from app.batch.watch.speeds import Speed
from app.figures import duration


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
        return self in _ACTIVE


_ACTIVE = frozenset(
    {
        Phase.STARTING,
        Phase.LOADING,
        Phase.RUNNING,
        Phase.PAUSING,
        Phase.STOPPING,
        Phase.WRITING,
    }
)


@dataclass(frozen=True, slots=True)
class JobView:
    """``own`` jobs were started from here and can be paused; of others only the journal is known,
    so that slots, keys and values, memory and the speed of prefill are None.

    ``done`` rows need nothing more: ``failed`` of them have an error, ``cached`` were answered by
    an earlier run. Rates are tokens a second; ``part_read`` is how much of the journal was read (0
    to 1). ``lines`` say how it ended, or what is wrong.
    """

    output: str
    phase: Phase
    own: bool
    rows: int = 0
    done: int = 0
    failed: int = 0
    cached: int = 0
    running: int | None = None
    slots: int | None = None
    elapsed_s: float = 0.0
    left: Left | None = None
    prefill_now: float | None = None
    prefill: float | None = None
    decode_now: float | None = None
    decode: float | None = None
    kv_tokens: int | None = None
    kv_capacity: int | None = None
    memory: int | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    part_read: float = 1.0
    speeds: tuple[Speed, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def counts(self) -> str:
        """Rows, in one line."""
        text = f"{self.done:,} of {self.rows:,} rows"
        if self.cached:
            text += f" ({self.cached:,} from before)"
        text += f" · {self.failed:,} failed"
        if self.left is not None and self.phase.active:
            text += f" · {self.left}"
        elif self.elapsed_s:
            text += f" · {duration(self.elapsed_s)}"
        return text

    @property
    def resources(self) -> str:
        """Slots, keys and values, memory; empty when they are not known."""
        if self.slots is None:
            return ""
        parts = [f"slots {self.running or 0}/{self.slots}"]
        if self.kv_capacity:
            used = 100 * (self.kv_tokens or 0) / self.kv_capacity
            parts.append(f"KV {self.kv_tokens or 0:,} ({used:.0f}%)")
        if self.memory:
            parts.append(f"memory {self.memory / 2**30:.2f} GiB")
        return " · ".join(parts)
