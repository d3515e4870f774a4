"""Greedy texts that must be equal, near-ties apart."""

from __future__ import annotations

from runtimes.request import Completion

NEAR_TIE = 0.02  # in natural log-probability, between the two best tokens


def near_ties(expected: list[Completion], found: list[Completion]) -> int:
    """How many pairs part at a near-tie; raises AssertionError for any other difference.

    ``expected`` must have been made with ``top_logprobs=2``.
    """
    ties = 0
    for a, b in zip(expected, found, strict=True):
        if a.token_ids == b.token_ids:
            continue
        pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
        at = next((i for i, (x, y) in pairs if x != y), None)
        assert at is not None, f"{a.text!r} and {b.text!r} differ in length alone"
        assert a.top_logprobs
        best = sorted(a.top_logprobs[at].values(), reverse=True)
        assert best[0] - best[1] <= NEAR_TIE, f"{a.text!r} / {b.text!r} part at token {at}"
        ties += 1
    return ties
