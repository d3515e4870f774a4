"""Log-probabilities of a prompt's own tokens, taken as it goes in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from runtimes.request import Request
from runtimes.runner import Logits
from runtimes.sampling.sampler import log_probabilities


@dataclass(slots=True)
class PromptScores:
    """Log-probabilities known so far, of the tokens from ``first`` on, in order."""

    prompt: list[int]
    top: int
    first: int = 1
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    error: str | None = None

    @classmethod
    def of(cls, request: Request) -> PromptScores | None:
        """None where nobody wants them."""
        top = request.params.prompt_logprobs
        return None if top is None else cls(request.prompt, top, request.scored_from)

    @property
    def usable(self) -> int | None:
        """How many tokens of a cached prefix may be left out; None when all are scored."""
        known = self.first - 1 + len(self.logprobs)
        return None if known + 1 >= len(self.prompt) else known

    def rows(self, start: int, count: int) -> int:
        """After how many of the last of ``count`` tokens from ``start`` on logits are wanted."""
        usable = self.usable
        return 0 if usable is None else max(start + count - max(start, usable), 0)

    def most_tokens(self, start: int, rows: int) -> int:
        """How many tokens from ``start`` on may go in for at most so many rows of logits."""
        usable = self.usable
        return len(self.prompt) if usable is None else max(usable - start, 0) + rows

    def take(self, logits: Logits) -> None:
        """The next tokens' logits: float32 [tokens, vocabulary]."""
        at = self.first + len(self.logprobs)
        tokens = np.array(self.prompt[at : at + len(logits)], np.int64)
        found = log_probabilities(logits, tokens, self.top)
        if np.isnan(found.chosen).any():
            self.error = (
                "the model gave logits that are not numbers; finer weights or KV types may help"
            )
            return
        self.logprobs += found.chosen.tolist()
        if self.top:
            self.top_logprobs += [found.likeliest(row, self.top) for row in range(len(logits))]

    def tokens(self) -> set[int]:
        """All that the log-probabilities are of."""
        return set(self.prompt[self.first - 1 :]).union(*self.top_logprobs)
