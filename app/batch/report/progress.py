"""The live view of a job on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app import console
from app.figures import rate

if TYPE_CHECKING:
    from app.batch.input.survey import Survey
    from app.batch.report.engine_figures import EngineFigures
    from app.batch.report.time_left import Left

_LINE_SECONDS, _SILENT_SECONDS = 10.0, 3.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job at one moment. ``done`` counts every row that needs nothing more, ``cached`` those of
    them that an earlier run answered; rates are tokens per second; ``kv_*`` are tokens in the
    slots, ``memory`` bytes of all its processes; ``working`` has the indexes of the rows with a
    slot; ``left`` is None before anything can be said; ``compiling``: all else waits for that."""

    rows: int
    done: int
    cached: int
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
    left: Left | None = None
    compiling: bool = False

    @property
    def left_text(self) -> str:
        """For people."""
        if self.compiling:
            return console.COMPILING
        return "estimating the time" if self.left is None else str(self.left)


class Progress(Protocol):
    """Shows snapshots until it is left."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *_: object) -> None: ...

    def begin(self, found: Survey) -> None:
        """Take in what is known of the input before the model is loaded."""

    def update(self, snapshot: Snapshot) -> None:
        """Take in the present state; shown when it is time."""

    def note(self, text: str) -> None:
        """Show one line that stays."""

    def doing(self, text: str) -> AbstractContextManager[object]:
        """Say what is being waited for, if it takes long."""


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

    def __exit__(self, *_: object) -> None:
        return

    def begin(self, found: Survey) -> None:
        """Nothing."""

    def update(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """See Progress."""
        console.note(text, style="yellow")

    def doing(self, text: str) -> AbstractContextManager[object]:
        """Nothing."""
        return nullcontext()


class Both(Silent):
    """Several views of one job."""

    def __init__(self, views: Sequence[Progress]) -> None:
        self._views = views

    def __enter__(self) -> Progress:
        for view in self._views:
            view.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        for view in self._views:
            view.__exit__(*raised)

    def begin(self, found: Survey) -> None:
        """See Progress."""
        for view in self._views:
            view.begin(found)

    def update(self, snapshot: Snapshot) -> None:
        """See Progress."""
        for view in self._views:
            view.update(snapshot)

    def note(self, text: str) -> None:
        """See Progress."""
        for view in self._views:
            view.note(text)

    @contextmanager
    def doing(self, text: str) -> Iterator[object]:
        """See Progress."""
        with ExitStack() as stack:
            for view in self._views:
                stack.enter_context(view.doing(text))
            yield None


class Lines(Silent):
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._begun = self._shown = time.monotonic()

    def doing(self, text: str) -> AbstractContextManager[object]:
        """See Progress."""
        return console.doing(text)

    def update(self, snapshot: Snapshot) -> None:
        """See Progress."""
        now = time.monotonic()
        soon = snapshot.compiling and self._shown == self._begun
        if now - self._shown < (_SILENT_SECONDS if soon else _LINE_SECONDS):
            return
        self._shown = now
        console.note(
            f"{snapshot.done:,}/{snapshot.rows:,} rows ({snapshot.cached:,} cached), "
            f"{snapshot.failed:,} failed; {speeds(snapshot)}; {occupancy(snapshot)}; "
            + snapshot.left_text
        )
