"""Which rows may have killed a worker process, found without failing their neighbours.

When one dies, the rows that it ran are suspects. Each of them is asked again alone: one that kills
a worker a second time is to blame, the others have lost nothing but time.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


class Suspects(Generic[RowT]):
    """Rows that a dead worker took with it, and what is to become of them."""

    def __init__(self) -> None:
        self.crashes = 0
        self._lost: dict[str, bool] = {}  # requests of a dead worker, and whether they ran
        self._suspects: deque[RowT] = deque()
        self._innocent: deque[RowT] = deque()  # that waited for a slot

    def __len__(self) -> int:
        """Rows that are to be asked again."""
        return len(self._suspects) + len(self._innocent)

    @property
    def open(self) -> bool:
        """Whether a suspect waits for its turn: until then no other row may be started."""
        return bool(self._suspects)

    def crashed(self, request_id: str, by_slot: Sequence[str], slots: int) -> bool:
        """A request ended because its worker died; ``by_slot`` has what that worker had in the
        order in which its ``slots`` are given, so that the first of them ran.

        Whether this is how the death became known.
        """
        if request_id in self._lost:
            return False
        self.crashes += 1
        self._lost |= {name: at < slots for at, name in enumerate(by_slot)}
        return True

    def ended(self, request_id: str) -> bool:
        """A request ended in whatever way; whether it ran when the worker died."""
        return self._lost.pop(request_id, True)

    def add(self, row: RowT, *, ran: bool) -> None:
        """A row that the worker took with it."""
        (self._suspects if ran else self._innocent).append(row)

    def next_suspect(self) -> RowT:
        """The next one to be asked alone."""
        return self._suspects.popleft()

    def next_innocent(self) -> RowT | None:
        """The next one to be asked like any other."""
        return self._innocent.popleft() if self._innocent else None
