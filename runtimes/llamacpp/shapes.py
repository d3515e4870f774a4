"""How many rows a pass must have for a row's result not to depend on how many there are.

llama.cpp's kernels for few rows add up in another order than those for many: which, and from how
many rows on, depends on the types of the file's tensors, on the processor and on the build. On
AVX2 without kernels of ours, for one, files with K-quants compute a row alike in every pass of 8
rows or more whose number is a multiple of 4, Q8_0 and F16 in every one of 2 or more. So it is
measured when a file is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from runtimes.llamacpp.memory import MOST_PROBED
from runtimes.runner import Logits, StepRow, StepRows

# llama.cpp's own kernels have others for a single row, and for 64 tokens or more of one slot.
_COUNTS = (2, 3, 4, 5, 7, 8, 11, 12, 16, 20, 24, MOST_PROBED)


@dataclass(frozen=True, slots=True)
class Alike:
    """Passes of ``least`` to ``most`` rows, a multiple of ``quantum``, compute a row alike."""

    least: int
    quantum: int
    most: int = MOST_PROBED

    def holds(self, rows: int) -> bool:
        """Whether so many rows, if they are not too many, are one of them."""
        return rows >= self.least and rows % self.quantum == 0

    def shape(self, needed: int, slots: int) -> tuple[int, int]:
        """How many slots, ``needed`` of ``slots`` or more, and how many tokens of each make the
        smallest such pass, which may be too large. Where slots are too few, tokens that do not
        count follow the real ones.
        """
        _, tokens, chosen = min(
            (number * tokens, tokens, number)
            for number in range(needed, slots + 1)
            for tokens in range(1, self.least + 1)
            if self.holds(number * tokens)
        )
        return chosen, tokens


# The cheapest first. All must have a shape for any number of slots that ``sequences`` gives.
_RULES = (Alike(2, 1), Alike(2, 1, 12), Alike(4, 4), Alike(8, 4), Alike(8, 8))


def find_alike(logits: Callable[[int], Logits]) -> Alike | None:
    """The rule that holds here; None if none does, so that each row must have a pass of its own.

    ``logits(n)`` is those after each of a text's first ``n`` tokens, from one pass.
    """
    found = {count: logits(count) for count in _COUNTS}

    def holds(rule: Alike) -> bool:
        most = found[rule.most]
        tried = [n for n in _COUNTS if rule.holds(n) and n <= rule.most]
        return all(np.array_equal(found[n], most[:n]) for n in tried)

    return next(filter(holds, _RULES), None)


def parted(run: list[StepRow], slots: int, rule: Alike) -> list[list[StepRow]]:
    """A run of decoding rows cut so that no pass is larger than what the rule was found on."""
    if prod(rule.shape(run[-1].slot - run[0].slot + 1, slots)) <= rule.most:
        return [run]
    half = len(run) // 2
    return [*parted(run[:half], slots, rule), *parted(run[half:], slots, rule)]


def filled(run: StepRows, lengths: Sequence[int], rule: Alike | None = None) -> StepRows:
    """A run of decoding rows with a row in every hole, one position past what that slot holds.

    With a ``rule`` it is a pass of one of its shapes, the rows with their further tokens.
    """
    first, count, tokens = run[0].slot, run[-1].slot - run[0].slot + 1, 1
    if rule is not None:
        count, tokens = rule.shape(count, len(lengths))
        first = min(first, len(lengths) - count)
    elif count == len(run):
        return run
    busy = {row.slot: row for row in run}
    rest = (0,) * (tokens - 1)
    return [
        row._replace(tokens=(*row.tokens, *rest))
        if (row := busy.get(slot))
        else StepRow(slot, lengths[slot], (0, *rest), logits=0)
        for slot in range(first, first + count)
    ]
