"""The live view of a job on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from app import console
from app.figures import duration, rate

if TYPE_CHECKING:
    from app.batch.answering import Known
    from app.batch.engine_figures import EngineFigures

_LINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job at one moment. ``done`` counts every row that needs nothing more, ``cached`` those of
    them that an earlier run answered, ``computed`` those that this run finished; rates are tokens
    per second; ``kv_*`` are tokens in the slots, ``memory`` bytes of all its processes; ``working``
    has the indexes of the rows with a slot."""

    rows: int
    done: int
    cached: int
    computed: int
    failed: int
    running: int
    slots: int
    elapsed_s: float
    prefill_now: float
    decode_now: float
    prefill: float
    decode: float
    kv_tokens: int
    kv_capacity: int
    memory: int
    draining: bool
    working: tuple[int, ...] = ()
    engines: tuple[EngineFigures, ...] = ()

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at the pace so far."""
        if not self.computed:
            return None
        return self.elapsed_s / self.computed * (self.rows - self.done)


class Progress(Protocol):
    """Shows snapshots until it is left."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def begin(self, known: Known) -> None:
        """Take in what is known of the input before the model is loaded."""

    def update(self, snapshot: Snapshot) -> None:
        """Take in the present state; shown when it is time."""

    def note(self, text: str) -> None:
        """Show one line that stays."""


def make_progress(*, quiet: bool, bar: bool) -> Progress:
    """The view that fits where stderr goes; ``bar`` only if nothing else writes to the terminal."""
    if quiet:
        return Silent()
    if bar and console.messages().is_terminal:
        from app.batch.bar import Bar

        return Bar()
    return _Lines()


def speeds(snapshot: Snapshot) -> str:
    """Prefill and decode, now and overall."""
    return (
        f"prefill {rate(snapshot.prefill_now)} (all {rate(snapshot.prefill)}), "
        f"decode {rate(snapshot.decode_now)} (all {rate(snapshot.decode)})"
    )


def occupancy(snapshot: Snapshot) -> str:
    """Engines if there are several, slots, keys and values, memory."""
    used = 100 * snapshot.kv_tokens / snapshot.kv_capacity if snapshot.kv_capacity else 0.0
    able = sum(engine.state == "ready" for engine in snapshot.engines)
    engines = f"engines {able}/{len(snapshot.engines)}, " if snapshot.engines else ""
    return (
        f"{engines}slots {snapshot.running}/{snapshot.slots}, KV {snapshot.kv_tokens:,} tokens "
        f"({used:.0f}%), memory {snapshot.memory / 2**30:.2f} GiB"
    )


class Silent:
    """Shows nothing but notes."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def begin(self, known: Known) -> None:
        """Nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """See Progress."""
        console.note(text, style="yellow")


class Both(Silent):
    """Several views of one job."""

    def __init__(self, views: Sequence[Progress]) -> None:
        self._views = views

    def __enter__(self) -> Progress:
        for view in self._views:
            view.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for view in self._views:
            view.__exit__(kind, error, trace)

    def begin(self, known: Known) -> None:
        """See Progress."""
        for view in self._views:
            view.begin(known)

    def update(self, snapshot: Snapshot) -> None:
        """See Progress."""
        for view in self._views:
            view.update(snapshot)

    def note(self, text: str) -> None:
        """See Progress."""
        for view in self._views:
            view.note(text)


class _Lines(Silent):
    def __init__(self) -> None:
        self._shown = time.monotonic()

    def update(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - self._shown < _LINE_SECONDS:
            return
        self._shown = now
        left = snapshot.left_s
        console.note(
            f"{snapshot.done:,}/{snapshot.rows:,} rows ({snapshot.cached:,} cached), "
            f"{snapshot.failed:,} failed; {speeds(snapshot)}; {occupancy(snapshot)}"
            + (f"; {duration(left)} left" if left is not None else "")
        )
