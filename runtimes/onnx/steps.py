"""What the two kinds of graph have in common for the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtimes.engine.runner import Logits, StepRow


class Steps(Protocol):
    """Runs tokens through a graph, and keeps the slot cache up to date.

    ``pair_lone_rows`` has a lone row decoded beside one that is thrown away.
    """

    pair_lone_rows: bool

    def prefill(
        self, slot: int, position: int, tokens: Sequence[int], *, every: bool = False
    ) -> Logits:
        """One slot's tokens behind the ``position`` it holds.

        Logits [1, vocab], or [len(tokens), vocab] with ``every`` where the graph has the choice,
        and always where it gives no other.
        """

    def decode(self, rows: Sequence[StepRow]) -> Logits:
        """One token for each row, in ascending slot order; logits of the rows that want them.

        They are valid until the next call.
        """

    def close(self) -> None:
        """Drop what holds memory."""
