"""The state of every row of a job, in nine bytes a row, and what a finished one took."""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np

_RECENT_KEPT = 500
_TEXT = 200  # characters of an answer


class RowState(IntEnum):
    """In the order in which ``Rows`` compares them."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    EARLIER = 3  # answered by an earlier run
    FAILED = 4
    INVALID = 5  # never asked


@dataclass(frozen=True, slots=True)
class RowFigures:
    """What a finished row took; rates are tokens a second. ``error`` is why there is no answer;
    ``text`` how the answer begins."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    prefill_tps: float | None = None
    decode_tps: float | None = None
    error: str | None = None
    text: str = ""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """From the answer of a journal's record."""
        if "error" in answer:
            error = answer["error"]
            return cls(error=f"{error.get('code', 'error')}: {error.get('message', '')}")
        usage, timings = answer.get("usage", {}), answer.get("timings", {})
        return cls(
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            timings.get("prefill_tps"),
            timings.get("decode_tps"),
            text=" ".join(str(answer.get("response", ""))[:_TEXT].split()),
        )


class Rows:
    """Indexes are those of the input. Not thread-safe."""

    def __init__(self) -> None:
        self._states = bytearray()
        self._offsets = array("q")
        self._recent: deque[int] = deque(maxlen=_RECENT_KEPT)
        self._running: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._states)

    def grow(self, count: int) -> None:
        """Make room for at least ``count`` rows."""
        more = count - len(self._states)
        if more > 0:
            self._states.extend(bytes(more))
            self._offsets.frombytes(b"\xff" * (8 * more))

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

    def finish(self, index: int, offset: int, *, good: bool) -> None:
        """Take in a journal's record, which begins at ``offset``."""
        if index < 0:
            return
        self.grow(index + 1)
        self._states[index] = RowState.DONE if good else RowState.FAILED
        self._offsets[index] = offset
        self._recent.append(index)

    def set_running(self, indexes: Iterable[int]) -> None:
        """Which rows are running now; the others that were so and did not finish wait."""
        for index in self._running:
            if self._states[index] == RowState.RUNNING:
                self._states[index] = RowState.WAITING
        self._running = tuple(indexes)
        for index in self._running:
            self.grow(index + 1)
            if self._states[index] == RowState.WAITING:
                self._states[index] = RowState.RUNNING

    def set_invalid(self, indexes: Iterable[int]) -> None:
        """Rows that ask nothing."""
        for index in indexes:
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
        """Where the journal has the row's last record."""
        offset = self._offsets[index] if index < len(self._offsets) else -1
        return None if offset < 0 else offset

    def count(self, *states: RowState) -> int:
        """How many rows are in one of ``states``."""
        return sum(self._states.count(bytes([state])) for state in states)

    def live(self) -> list[int]:
        """The running rows, then those that finished last, the latest first."""
        running = [i for i in self._running if self._states[i] == RowState.RUNNING]
        return list(dict.fromkeys([*running, *reversed(self._recent)]))

    def failed(self) -> list[int]:
        """The rows without an answer to come, in their order."""
        return self._from(RowState.FAILED)

    def known(self) -> list[int]:
        """The rows that something is known of, in their order."""
        return self._from(RowState.RUNNING)

    def _from(self, state: RowState) -> list[int]:
        states = np.frombuffer(bytes(self._states), np.uint8)
        found: list[int] = np.flatnonzero(states >= state).tolist()
        return found
