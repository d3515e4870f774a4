"""States of all rows of a job, in 21 bytes a row, and its speeds over its whole time, in
bounded memory."""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

_RECENT_KEPT = 500
_MOST = 2**25  # rows of which anything is known: a journal from elsewhere may say any number

Which = Literal["live", "all", "running", "done", "failed"]
By = Literal["row", "state", "prompt", "answer", "speed"]


class RowState(IntEnum):
    """In the order in which ``Rows`` compares them."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    EARLIER = 3  # answered by an earlier run
    FAILED = 4
    INVALID = 5  # never asked


# States of the rows of a kind.
KINDS: Mapping[Which, tuple[RowState, ...]] = {
    "running": (RowState.RUNNING,),
    "done": (RowState.DONE, RowState.EARLIER),
    "failed": (RowState.FAILED, RowState.INVALID),
}


class Rows:
    """Indexes are those of the input. Not thread-safe."""

    def __init__(self) -> None:
        self._states = bytearray()
        self._offsets = array("q")
        self._prompts, self._answers = array("i"), array("i")  # tokens
        self._speeds = array("f")  # answer tokens a second
        self._recent: deque[int] = deque(maxlen=_RECENT_KEPT)
        self._running: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._states)

    def grow(self, count: int) -> None:
        """Make room for at least ``count`` rows."""
        more = min(count, _MOST) - len(self._states)
        if more > 0:
            self._states.extend(bytes(more))
            self._offsets.frombytes(b"\xff" * (8 * more))
            for values in (self._prompts, self._answers, self._speeds):
                values.frombytes(bytes(4 * more))

    def forget(self) -> None:
        """Start anew: what was known belongs to other answers."""
        self.__init__()  # type: ignore[misc]

    def begin_run(self, *, keep_failures: bool) -> None:
        """Another run begins: answers are from before it now, failures are tried again."""
        table = bytearray(range(256))
        table[RowState.RUNNING] = table[RowState.INVALID] = RowState.WAITING
        table[RowState.DONE] = RowState.EARLIER
        if not keep_failures:
            table[RowState.FAILED] = RowState.WAITING
        self._states = self._states.translate(table)
        self._running = ()
        self._recent.clear()

    def finish(
        self,
        index: int,
        offset: int,
        *,
        good: bool,
        tokens: tuple[int, int] = (0, 0),
        speed: float = 0.0,
    ) -> None:
        """Take in a journal's record, which begins at ``offset``: ``tokens`` of prompt and answer,
        answer tokens a second."""
        if not 0 <= index < _MOST:
            return
        self.grow(index + 1)
        self._states[index] = RowState.DONE if good else RowState.FAILED
        self._offsets[index] = offset
        self._prompts[index], self._answers[index] = tokens
        self._speeds[index] = speed
        self._recent.append(index)

    def set_running(self, indexes: Iterable[int]) -> None:
        """Set the rows that run now; others that ran and did not finish wait."""
        for index in self._running:
            if self._states[index] == RowState.RUNNING:
                self._states[index] = RowState.WAITING
        self._running = tuple(one for one in indexes if 0 <= one < _MOST)
        for index in self._running:
            self.grow(index + 1)
            if self._states[index] == RowState.WAITING:
                self._states[index] = RowState.RUNNING

    def set_invalid(self, indexes: Iterable[int]) -> None:
        """Rows that ask nothing."""
        for index in indexes:
            if 0 <= index < _MOST:
                self.grow(index + 1)
                self._states[index] = RowState.INVALID

    def close(self) -> None:
        """Every row has a result: those without one in the journal were not valid."""
        table = bytearray(range(256))
        table[RowState.WAITING] = table[RowState.RUNNING] = RowState.INVALID
        self._states = self._states.translate(table)

    def state(self, index: int) -> RowState:
        """The state of a row."""
        return RowState(self._states[index]) if index < len(self._states) else RowState.WAITING

    def offset(self, index: int) -> int | None:
        """Offset of the row's last record in the journal."""
        offset = self._offsets[index] if index < len(self._offsets) else -1
        return None if offset < 0 else offset

    def counts(self) -> dict[Which, int]:
        """How many rows of each kind there are."""
        count = self._states.count
        kinds = {kind: sum(map(count, states)) for kind, states in KINDS.items()}
        return {"all": len(self), **kinds}

    def live(self) -> list[int]:
        """The running rows, then those that finished last, the latest first."""
        running = [i for i in self._running if self._states[i] == RowState.RUNNING]
        return list(dict.fromkeys([*running, *reversed(self._recent)]))

    def order(
        self, which: Which, by: By = "row", *, down: bool = False, known: bool = False
    ) -> list[int] | range:
        """Rows of a kind in an order. ``known``: of all, those that something is known of."""
        states = np.frombuffer(bytes(self._states), np.uint8)
        if which in KINDS:
            found = np.flatnonzero(np.isin(states, KINDS[which]))
        elif by == "row" and not known:
            return range(len(self))[:: -1 if down else 1]
        else:
            found = np.flatnonzero(states >= (RowState.RUNNING if known else 0))
        if by != "row":
            columns = {"prompt": self._prompts, "answer": self._answers, "speed": self._speeds}
            values = np.array(columns.get(by, states), float)[found]
            # Equal ones stay in the order of their rows, in either direction.
            found = found[np.argsort(-values if down else values, kind="stable")]
        elif down:
            found = found[::-1]
        rows: list[int] = found.tolist()
        return rows


@dataclass(frozen=True, slots=True)
class SpeedAt:
    """Tokens a second at a moment of the run (seconds since its begin)."""

    at: float
    prefill: float
    decode: float


class SpeedHistory:
    """At most ``most`` points: when they are that many, each two become their mean, and from then
    on twice as much time goes into a new one."""

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._points: list[SpeedAt] = []
        self._open: list[SpeedAt] = []
        self._group = 1

    def add(self, speed: SpeedAt) -> None:
        """A point that is later than the last one."""
        self._open.append(speed)
        if len(self._open) < self._group:
            return
        self._points.append(_mean(self._open))
        self._open.clear()
        if len(self._points) >= self._most:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [_mean([a, b]) for a, b in pairs]
            self._group *= 2

    def points(self) -> tuple[SpeedAt, ...]:
        """All of them in order."""
        return (*self._points, _mean(self._open)) if self._open else tuple(self._points)


def _mean(points: list[SpeedAt]) -> SpeedAt:
    count = len(points)
    return SpeedAt(
        points[-1].at,
        sum(point.prefill for point in points) / count,
        sum(point.decode for point in points) / count,
    )
