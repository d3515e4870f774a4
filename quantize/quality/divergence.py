"""Comparing next-token distributions, a block of positions at a time, and summing up."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FLOOR = np.float32(-65504.0)  # stands for minus infinity: exp() of it is 0, and 0 times it is 0
_BLOCK = 2**22  # logits that are worked on at once


@dataclass(frozen=True, slots=True)
class Scores:
    """What each scored position of a text gave, in order."""

    nll: Doubles  # minus the natural log-probability of the id that follows
    kl: Doubles  # the divergence from the float model in nats
    same: npt.NDArray[np.bool_]  # whether both find the same id the most likely


@dataclass(frozen=True, slots=True)
class Summary:
    """A value and its standard error."""

    value: float
    error: float


def shifted(logits: Floats) -> Halves:
    """Logits less the largest of their row, in half precision: [rows, vocab].

    The softmax of what comes out is the float model's distribution with each probability p off by
    a factor of at most 1 + 2^-11 |log p - log max p|: a divergence of about 1e-7 nats, a thousandth
    of what 8-bit weights make.
    """
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                (block - block.max(axis=1, keepdims=True)).astype(np.float16)
                for _, block in _blocks(logits)
            ]
        )


def negative_log_likelihood(logits: Floats, targets: Ints) -> Doubles:
    """Minus the log-softmax of each row at its target: [rows]."""
    parts = [
        _log_total(block) - block[np.arange(len(block)), targets[rows]]
        for rows, block in _blocks(logits)
    ]
    return np.concatenate(parts)


def compare(base: Halves, tops: Ints, logits: Floats, targets: Ints) -> Scores:
    """Score ``logits`` [rows, vocab] against what ``shifted`` made of the float model's.

    ``tops`` are the float model's likeliest ids. Where one of the two has more columns (rows that
    only fill up a vocabulary), both are taken over the ids that they share.
    """
    width = min(base.shape[1], logits.shape[1])
    kl, nll, same = [], [], []
    for rows, block in _blocks(logits[:, :width]):
        p, q = np.maximum(base[rows, :width].astype(np.float32), _FLOOR), np.maximum(block, _FLOOR)
        q_total = _log_total(q)
        weights = np.exp(p)
        mass = weights.sum(axis=1, dtype=np.float64)
        # The sum over ids of p (log p - log q), with log p = p - log(mass), log q = q - q_total.
        apart = (weights * (p - q)).sum(axis=1, dtype=np.float64) / mass
        kl.append(apart - np.log(mass) + q_total)
        nll.append(q_total - q[np.arange(len(q)), targets[rows]])
        same.append(q.argmax(axis=1) == tops[rows])
    return Scores(np.concatenate(nll), np.concatenate(kl), np.concatenate(same))


def mean(values: Doubles) -> Summary:
    """Mean and standard error, taking positions as independent, as llama.cpp's tool does."""
    count = len(values)
    return Summary(float(values.mean()), float(values.std() / math.sqrt(max(count - 1, 1))))


def perplexity(nll: Doubles) -> Summary:
    """The exponential of the mean, and its error by first-order propagation."""
    log = mean(nll)
    value = math.exp(min(log.value, 700.0))  # beyond, a double ends
    return Summary(value, value * log.error)


def _blocks(logits: Floats) -> list[tuple[slice, Floats]]:
    rows = max(1, _BLOCK // logits.shape[1])
    starts = range(0, len(logits), rows)
    return [(slice(at, at + rows), logits[at : at + rows]) for at in starts]


def _log_total(logits: Floats) -> Doubles:
    """log(sum(exp(logits))) of each row."""
    top = logits.max(axis=1)
    total: Doubles = top + np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64))
    return total
