"""A request on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtimes.request import Request


@dataclass(slots=True, eq=False)
class Row:
    """One sample of a request: its tokens, and how far its slot has got with them.

    ``cached`` counts the tokens whose keys and values are in the slot; ``dropped`` of these a
    context shift has taken out again, so that the next position is their difference. ``fresh`` is
    True until the slot has been made ready for this row. ``reused`` counts the prompt's tokens that
    did not have to be computed. ``requeued`` marks a row that has lost a slot before. With a
    ``chunk`` above 1 the row is computed in one way only: the prompt is cut at multiples of it, and
    each token of the answer goes in by itself, also when it has to be computed again.
    """

    request: Request
    key: float = 0.0  # what waiting rows are ordered by: aged arrival
    order: int = 0  # breaks ties: first come, first served
    index: int = 0  # which of the request's samples
    slot: int = -1
    cached: int = 0
    dropped: int = 0
    fresh: bool = True
    reused: int = 0
    requeued: bool = False
    output: list[int] = field(default_factory=list)
    chunk: int = 1

    def rank(self) -> tuple[float, int, int]:
        """What rows are ordered by; no two are equal."""
        return (self.key, self.order, self.index)

    @property
    def length(self) -> int:
        """Prompt and output together."""
        return len(self.request.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        """Tokens that must go through the model before the next one can be sampled."""
        return self.length - self.cached

    @property
    def decoding(self) -> bool:
        """Whether one token is all that the next sample needs."""
        return not self.fresh and self.pending == 1

    @property
    def piece(self) -> int:
        """How many tokens go in next, by ``chunk``."""
        left = len(self.request.prompt) - self.cached
        return min(left, self.chunk - self.cached % self.chunk) if left > 0 else 1

    @property
    def position(self) -> int:
        """Where the next token goes in the slot."""
        return self.cached - self.dropped

    def tokens(self, start: int, count: int) -> list[int]:
        """``count`` tokens of prompt and output from ``start`` on."""
        prompt = self.request.prompt
        if start >= len(prompt):
            start -= len(prompt)
            return self.output[start : start + count]
        return (prompt[start : start + count] + self.output)[:count]

    def held(self) -> Sequence[int]:
        """The tokens in the slot that another row can use: none after a shift, whole chunks of the
        prompt where there are any.
        """
        return [] if self.dropped or self.fresh else self.tokens(0, self._reusable(self.cached))

    def coming(self) -> Sequence[int]:
        """What ``held`` will be once all tokens are in."""
        return self.tokens(0, self._reusable(self.length))

    def _reusable(self, count: int) -> int:
        if self.chunk == 1:
            return count
        return min(count, len(self.request.prompt)) // self.chunk * self.chunk
