"""A running job at one moment."""

from dataclasses import dataclass, fields
from typing import Any

from app import console
from app.batch.report.engine_figures import EngineFigures
from app.batch.report.time_left import Left, left_json
from app.figures import rate


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rates are tokens a second. The names and their order are those of a ``progress`` event."""

    rows: int
    done: int  # need nothing more
    cached: int  # of them: answered by an earlier run
    failed: int
    running: int
    slots: int
    elapsed_s: float
    left: Left | None  # None before anything can be said
    prefill_tps_now: float
    prefill_tps: float
    decode_tps_now: float
    decode_tps: float
    kv_tokens: int  # in the slots
    kv_capacity: int
    memory_bytes: int  # of all its processes
    draining: bool
    working: tuple[int, ...] = ()  # the indexes of the rows with a slot
    engines: tuple[EngineFigures, ...] = ()  # if there are several
    compiling: bool = False  # all else waits for that

    @property
    def left_text(self) -> str:
        """For people."""
        if self.compiling:
            return console.COMPILING
        return "estimating the time" if self.left is None else str(self.left)

    @property
    def speeds(self) -> str:
        """Prefill and decode, now and overall."""
        return (
            f"prefill {rate(self.prefill_tps_now)} (all {rate(self.prefill_tps)}), "
            f"decode {rate(self.decode_tps_now)} (all {rate(self.decode_tps)})"
        )

    @property
    def occupancy(self) -> str:
        """Engines if there are several, slots, keys and values, memory."""
        used = 100 * self.kv_tokens / self.kv_capacity if self.kv_capacity else 0.0
        able = sum(engine.state == "ready" for engine in self.engines)
        engines = f"engines {able}/{len(self.engines)}, " if self.engines else ""
        return (
            f"{engines}slots {self.running}/{self.slots}, KV {self.kv_tokens:,} tokens "
            f"({used:.0f}%), memory {self.memory_bytes / 2**30:.2f} GiB"
        )

    def as_json(self) -> dict[str, Any]:
        """For an event."""
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name == "left":
                values |= left_json(value)
            elif name == "engines":
                values |= {"engines": [engine.as_json() for engine in value]} if value else {}
            elif name != "compiling":
                digits = 3 if name == "elapsed_s" else 1
                values[name] = round(value, digits) if isinstance(value, float) else value
        return values
