"""Greedy texts that must be equal, near-ties apart."""

from __future__ import annotations

from collections.abc import Sequence

from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.request import Completion, FinishReason
from runtimes.settings import RunnerSettings

NEAR_TIE = 0.02  # in natural log-probability, between the two best tokens
# llama.cpp adds up rows of K-quants, and cells of a cache that rows share, in groups that depend on
# how many there are. Measured on Pebble: at most 0.26.
REGROUPED_TIE = 0.35


def near_tie(model: ModelFile, *, unified: bool = False) -> float:
    """How far two log-probabilities of one row may move with the rows beside it. A device has other
    kernels for one row, for several and for a prompt."""
    on_device = backend_of(model).on_gpu(RunnerSettings())
    regrouped = unified or on_device or model.quantization.endswith("_K")
    return REGROUPED_TIE if regrouped else NEAR_TIE


def near_ties(
    expected: Sequence[Completion], found: Sequence[Completion], within: float = NEAR_TIE
) -> int:
    """How many pairs part where the two best tokens are ``within`` each other; raises
    AssertionError for any other difference. What was cancelled may end early.

    ``expected`` must have been made with ``top_logprobs=2``.
    """
    ties = 0
    for a, b in zip(expected, found, strict=True):
        pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
        at = next((i for i, (x, y) in pairs if x != y), None)
        if at is None:
            cancelled = b.finish_reason is FinishReason.CANCELLED
            same = len(a.token_ids) == len(b.token_ids) or cancelled
            assert same, f"{a.text!r} and {b.text!r} differ in length alone"
            continue
        assert a.top_logprobs
        best = sorted(a.top_logprobs[at].values(), reverse=True)
        apart = best[0] - best[1]
        said = f"{a.text!r} / {b.text!r} part at token {at}, where two are {apart:.3f} apart"
        assert apart <= within, said
        ties += 1
    return ties
