"""A running job at one moment, and who is shown it: a bar on a terminal (``bar``), elsewhere a line
every ten seconds, events (``events``), or nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from app import console
from app.batch.report.time_left import Left, left_json
from app.figures import rate

if TYPE_CHECKING:
    from app.batch.input.scan import InputScan
    from app.batch.report.engine_figures import EngineFigures

_LINE_SECONDS, _SILENT_SECONDS = 10.0, 3.0


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


class BaseProgress:
    """Shows nothing but notes. A context manager around the time in which rows run."""

    def __enter__(self) -> BaseProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def begin(self, found: InputScan) -> None:
        """Take in what is known of the input before the model is loaded."""

    def update(self, snapshot: Snapshot) -> None:
        """Take in the present state; shown when it is time."""

    def note(self, text: str) -> None:
        """Show one line that stays."""
        console.note(text, style="yellow")

    def doing(self, text: str) -> AbstractContextManager[object]:
        """Say what is being waited for, if it takes long."""
        return nullcontext()


class Views(BaseProgress):
    """Several views of one job."""

    def __init__(self, views: Sequence[BaseProgress]) -> None:
        self._views = views

    def __enter__(self) -> BaseProgress:
        for view in self._views:
            view.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        for view in self._views:
            view.__exit__(*raised)

    def begin(self, found: InputScan) -> None:
        """To each of them."""
        for view in self._views:
            view.begin(found)

    def update(self, snapshot: Snapshot) -> None:
        """To each of them."""
        for view in self._views:
            view.update(snapshot)

    def note(self, text: str) -> None:
        """To each of them."""
        for view in self._views:
            view.note(text)

    @contextmanager
    def doing(self, text: str) -> Iterator[object]:
        """To each of them."""
        with ExitStack() as stack:
            yield [stack.enter_context(view.doing(text)) for view in self._views]


class Lines(BaseProgress):
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._begun = self._shown = time.monotonic()

    def doing(self, text: str) -> AbstractContextManager[object]:
        """On the console."""
        return console.doing(text)

    def update(self, snapshot: Snapshot) -> None:
        """A line, if the last one is ten seconds old."""
        now = time.monotonic()
        soon = snapshot.compiling and self._shown == self._begun
        if now - self._shown < (_SILENT_SECONDS if soon else _LINE_SECONDS):
            return
        self._shown = now
        console.note(
            f"{snapshot.done:,}/{snapshot.rows:,} rows ({snapshot.cached:,} cached), "
            f"{snapshot.failed:,} failed; {snapshot.speeds}; {snapshot.occupancy}; "
            + snapshot.left_text
        )
