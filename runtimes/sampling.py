"""Choose the next token of every row at once.

Order of the steps (vLLM's and transformers'): repetition, presence and frequency penalties ->
temperature -> top-k -> top-p -> min-p -> draw. Repetition counts prompt and output tokens (CTRL,
arXiv:1909.05858); presence and frequency count output tokens only (OpenAI's definition).

The draw takes one uniform number that is a hash of (seed, index of the token), so a row's text does
not depend on which rows share its batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtimes.request import SamplingParams
from runtimes.runner import Logits

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Sorting a whole vocabulary costs 100 times the draw; nearly always the nucleus lies in these many.
_CANDIDATES = 1024
_BLOCK = 64


@dataclass(slots=True, eq=False)
class SamplerState:
    """What sampling must remember of one row: its seed and the tokens that penalties count."""

    params: SamplingParams
    prompt: Sequence[int] = ()
    seed: int = 0
    drawn: int = 0
    _counts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed = self.params.seed if self.params.seed is not None else secrets.randbits(63)
        if self._penalised:
            # A count of 0 marks a token that only the prompt holds.
            self._counts = dict.fromkeys(self.prompt, 0)

    @property
    def _penalised(self) -> bool:
        p = self.params
        return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def accept(self, token: int) -> None:
        """Count a token that was sampled."""
        self.drawn += 1
        if self._penalised:
            self._counts[token] = self._counts.get(token, 0) + 1

    @property
    def counts(self) -> dict[int, int]:
        """Occurrences in the output of every token seen so far; empty without penalties."""
        return self._counts


def sample(logits: Logits, states: Sequence[SamplerState]) -> Ints:
    """One token id a row. ``logits`` is float32 [rows, vocabulary] and is left as it is."""
    if all(state.params.temperature == 0 and not state.counts for state in states):
        return _argmax(logits)
    if any(state.counts for state in states):
        logits = _penalise(logits, states)
    tokens = _argmax(logits)
    drawn = [i for i, state in enumerate(states) if state.params.temperature > 0]
    if drawn:
        rows = np.array(drawn)
        tokens[rows] = _draw(logits[rows], [states[i] for i in drawn])
    return tokens


def _argmax(logits: Logits) -> Ints:
    best: Ints = logits.argmax(axis=1)
    return best


def log_probability(logits: Logits, tokens: Ints) -> Floats:
    """Natural log of each row's softmax at its token, before penalties and temperature."""
    top = logits.max(axis=1)
    total = np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(tokens)), tokens]
    result: Floats = (chosen - top - np.log(total)).astype(np.float32)
    return result


def _penalise(logits: Logits, states: Sequence[SamplerState]) -> Logits:
    """A copy with every seen token's logit lowered, in one scatter over all rows."""
    sizes = [len(state.counts) for state in states]
    row = np.repeat(np.arange(len(states)), sizes)
    token = np.fromiter((t for s in states for t in s.counts), np.int64, sum(sizes))
    count = np.fromiter((c for s in states for c in s.counts.values()), np.float32, sum(sizes))

    def param(name: str) -> Floats:
        values = np.array([getattr(s.params, name) for s in states], np.float32)
        return values[row]

    value = logits[row, token]
    factor = param("repetition_penalty")
    value = np.where(value > 0, value / factor, value * factor)
    value -= param("frequency_penalty") * count + param("presence_penalty") * (count > 0)
    lowered = logits.copy()
    lowered[row, token] = value
    return lowered


def _uniform(states: Sequence[SamplerState]) -> Doubles:
    """One number in [0, 1) a row: splitmix64 (Steele et al., OOPSLA 2014) of seed and index."""
    seeds = np.array([s.seed & 0xFFFFFFFFFFFFFFFF for s in states], np.uint64)
    steps = np.array([s.drawn + 1 for s in states], np.uint64)
    with np.errstate(over="ignore"):
        z = _mix(seeds) + steps * np.uint64(0x9E3779B97F4A7C15)
        z = _mix(z)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _draw(logits: Logits, states: Sequence[SamplerState]) -> Ints:
    """Temperature, top-k, top-p, min-p and one draw, for rows whose temperature is above 0."""
    vocabulary = logits.shape[1]
    limits = _Limits(
        temperature=np.array([s.params.temperature for s in states], np.float64),
        top_k=np.array([s.params.top_k or vocabulary for s in states]),
        top_p=np.array([s.params.top_p for s in states], np.float64),
        min_p=np.array([s.params.min_p for s in states], np.float64),
        uniform=_uniform(states),
    )
    widest = int(limits.top_k.max())
    width = min(vocabulary, widest if widest <= _CANDIDATES else _CANDIDATES)
    tokens, certain = _draw_among(logits, width, limits)
    while not certain.all():
        # A flat distribution: look further, each time for the rows that need it only.
        width = min(vocabulary, width * 16)
        rest = np.flatnonzero(~certain)
        tokens[rest], certain[rest] = _draw_among(logits[rest], width, limits.of(rest))
    return tokens


@dataclass(frozen=True, slots=True)
class _Limits:
    """Each row's parameters of the draw, as columns."""

    temperature: Doubles
    top_k: Ints
    top_p: Doubles
    min_p: Doubles
    uniform: Doubles

    def of(self, rows: Ints) -> _Limits:
        return _Limits(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.uniform[rows],
        )


def _draw_among(logits: Logits, width: int, limits: _Limits) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Draw among each row's ``width`` best tokens.

    Returns the tokens, and which rows are certain: either all that the row's limits keep lies among
    those tokens, or nothing but the temperature applies and the drawn point falls among them.
    """
    rows, vocabulary = logits.shape
    ids, values = _best(logits, width)
    top = values[:, :1].astype(np.float64)
    # A tiny temperature may overflow to -inf, whose weight is 0, as it should be.
    with np.errstate(over="ignore"):
        weights = np.exp((values - top) / limits.temperature[:, None])
    weights *= np.arange(width) < limits.top_k[:, None]
    everything = weights.sum(axis=1)
    open_rows = np.flatnonzero(limits.top_k > width)
    if len(open_rows):
        with np.errstate(over="ignore"):
            spread = logits[open_rows] - values[open_rows, :1]
            spread /= limits.temperature[open_rows, None].astype(np.float32)
        everything[open_rows] = np.exp(spread, out=spread).sum(axis=1, dtype=np.float64)
    reached = np.cumsum(weights, axis=1)
    # top-p keeps the tokens up to and with the one that reaches its share of what top-k kept.
    nucleus = np.where(limits.top_p >= 1, np.inf, limits.top_p * everything)
    weights *= (reached - weights) < nucleus[:, None]
    weights *= weights >= limits.min_p[:, None] * weights[:, :1]
    kept = np.cumsum(weights, axis=1)
    complete = ((limits.top_k <= width) | (reached[:, -1] >= nucleus) | (weights[:, -1] == 0)) | (
        width == vocabulary
    )
    point = limits.uniform * np.where(complete, kept[:, -1], everything)
    plain = (limits.top_p >= 1) & (limits.min_p == 0)
    certain = complete | (plain & (point < kept[:, -1]))
    chosen = (kept <= point[:, None]).sum(axis=1)
    # Rounding may put the point on the far edge: the last kept token then.
    chosen = np.minimum(chosen, np.maximum((weights > 0).sum(axis=1) - 1, 0))
    return ids[np.arange(rows), chosen], certain


def _best(logits: Logits, width: int) -> tuple[Ints, Floats]:
    """Ids and logits of each row's ``width`` largest, in descending order, ties by ascending id."""
    vocabulary = logits.shape[1]
    if width >= vocabulary:
        ids = np.argsort(-logits, axis=1, kind="stable")
        return ids, np.take_along_axis(logits, ids, axis=1)
    blocks = vocabulary // _BLOCK
    if width * 4 <= blocks:
        # The best `width` tokens lie in the `width` blocks with the largest maxima, or the tail.
        body = logits[:, : blocks * _BLOCK].reshape(len(logits), blocks, _BLOCK)
        maxima = body.max(axis=2)
        chosen = np.argpartition(maxima, blocks - width, axis=1)[:, blocks - width :]
        inside = (chosen[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(len(logits), -1)
        tail = np.arange(blocks * _BLOCK, vocabulary)
        pool = np.hstack([inside, np.broadcast_to(tail, (len(logits), len(tail)))])
        values = np.take_along_axis(logits, pool, axis=1)
        best = np.argpartition(values, values.shape[1] - width, axis=1)[:, -width:]
        ids = np.take_along_axis(pool, best, axis=1)
    else:
        ids = np.argpartition(logits, vocabulary - width, axis=1)[:, vocabulary - width :]
    values = np.take_along_axis(logits, ids, axis=1)
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
