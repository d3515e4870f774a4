"""States of all rows of a job, in 21 bytes a row, and its speeds over its whole time, in
bounded memory."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

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


# Of a row: its state, the offset of its last record, tokens, answer tokens a second.
_ROW = np.dtype("u1, i8, i4, i4, f4", align=False)
_ROW.names = ("state", "offset", "prompt", "answer", "speed")
_UNKNOWN = np.array((RowState.WAITING, -1, 0, 0, 0.0), _ROW)


class Rows:
    """Indexes are those of the input. Not thread-safe."""

    def __init__(self) -> None:
        self._room = np.full(0, _UNKNOWN)  # beyond the known rows for more
        self._count = 0
        self._recent: deque[int] = deque(maxlen=_RECENT_KEPT)
        self._running: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def _states(self) -> np.ndarray[Any, Any]:
        return self._room["state"][: self._count]

    def grow(self, count: int) -> None:
        """Make room for at least ``count`` rows."""
        self._count = max(self._count, min(count, _MOST))
        if self._count > len(self._room):
            more = max(self._count - len(self._room), len(self._room))
            self._room = np.concatenate([self._room, np.full(more, _UNKNOWN)])

    def forget(self) -> None:
        """Start anew: what was known belongs to other answers."""
        self.__init__()  # type: ignore[misc]

    def begin_run(self, *, keep_failures: bool) -> None:
        """Another run begins: answers are from before it now, failures are tried again."""
        states = self._states
        states[states == RowState.DONE] = RowState.EARLIER
        again = [RowState.RUNNING, RowState.INVALID, *([] if keep_failures else [RowState.FAILED])]
        states[np.isin(states, again)] = RowState.WAITING
        self._running = []
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
        if 0 <= index < _MOST:
            self.grow(index + 1)
            state = RowState.DONE if good else RowState.FAILED
            self._room[index] = state, offset, *tokens, speed
            self._recent.append(index)

    def set_running(self, indexes: Iterable[int]) -> None:
        """Set the rows that run now; others that ran and did not finish wait."""
        self._change(self._running, RowState.RUNNING, RowState.WAITING)
        self._running = self._change(indexes, RowState.WAITING, RowState.RUNNING)

    def set_invalid(self, indexes: Iterable[int]) -> None:
        """Rows that ask nothing."""
        self._change(indexes, None, RowState.INVALID)

    def _change(
        self, indexes: Iterable[int], before: RowState | None, after: RowState
    ) -> list[int]:
        """Give ``after`` to those that are ``before``, or to all; the indexes that can be."""
        known = [index for index in indexes if 0 <= index < _MOST]
        self.grow(max(known, default=-1) + 1)
        for index in known:
            if before is None or self._states[index] == before:
                self._states[index] = after
        return known

    def close(self) -> None:
        """Every row has a result: those without one in the journal were not valid."""
        states = self._states
        states[states <= RowState.RUNNING] = RowState.INVALID

    def state(self, index: int) -> RowState:
        """The state of a row."""
        return RowState(self._states[index]) if index < self._count else RowState.WAITING

    def offset(self, index: int) -> int | None:
        """Offset of the row's last record in the journal."""
        offset = int(self._room["offset"][index]) if index < self._count else -1
        return None if offset < 0 else offset

    def counts(self) -> dict[Which, int]:
        """How many rows of each kind there are."""
        count = np.bincount(self._states, minlength=len(RowState)).tolist()
        kinds = {kind: sum(count[state] for state in states) for kind, states in KINDS.items()}
        return {"all": self._count, **kinds}

    def live(self) -> list[int]:
        """The running rows, then those that finished last, the latest first."""
        running = [i for i in self._running if self._states[i] == RowState.RUNNING]
        return list(dict.fromkeys([*running, *reversed(self._recent)]))

    def order(
        self, which: Which, by: By = "row", *, down: bool = False, known: bool = False
    ) -> list[int] | range:
        """Rows of a kind in an order. ``known``: of all, those that something is known of."""
        if which in KINDS:
            found = np.flatnonzero(np.isin(self._states, KINDS[which]))
        elif by == "row" and not known:
            return range(self._count)[:: -1 if down else 1]
        else:
            found = np.flatnonzero(self._states >= (RowState.RUNNING if known else 0))
        if by != "row":
            values = self._room[by][found].astype(float)
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
