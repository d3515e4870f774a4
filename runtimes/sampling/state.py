"""Sampling state of one row, and the changes that it makes to the row's logits."""

import secrets
from collections.abc import Iterable, Sequence

import numpy as np

from runtimes.request import SamplingParams
from runtimes.runner import Floats, Ints
from runtimes.sampling.grammar import GrammarMatcher
from runtimes.sampling.thoughts import Thoughts

# Beyond these a float32 difference of logits times 1/temperature would be 0 * inf.
_COLDEST, _HOTTEST = 1e-30, 1e30

_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_SAMPLE = 0xD1B54A32D192ED03  # any odd number but the one above


class SamplerState:
    """One row's parameters, its seed, and the tokens that penalties count.

    ``eos_ids`` are banned below ``min_tokens``. ``sample_index`` tells the samples of one request
    apart: each draws from a stream of its own, and the first from that of the seed itself.
    ``matcher`` follows the row's constraint, or its thought and the constraint behind that.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        *,
        eos_ids: frozenset[int] = frozenset(),
        sample_index: int = 0,
        matcher: GrammarMatcher | Thoughts | None = None,
    ) -> None:
        self.params = params
        self.greedy, self.scored = params.temperature == 0, params.wants_logprobs
        self.matcher = matcher
        self.drawn = 0
        self.inverse_temperature = 1 / min(max(params.temperature, _COLDEST), _HOTTEST)
        seed = params.seed
        if seed is None:
            seed = 0 if self.greedy else secrets.randbits(63)
        if sample_index:
            seed = _mix(_mix(seed & _WORD) + sample_index * _SAMPLE)
        self._stream = _mix(seed & _WORD)
        self._bias = _bias(params.logit_bias)
        self._eos = np.array(sorted(eos_ids), np.int64)
        self._without_eos = params.min_tokens if eos_ids else 0  # so many tokens at first
        self._penalised = params.penalised
        self._seen = _Counts(prompt if self._penalised else ())
        edited = self._bias is not None or self._without_eos > 0 or self._penalised
        # Whether its token is always that of the largest logit
        self.plain = self.greedy and matcher is None and not edited

    def accept(self, token: int) -> None:
        """Count a token that was sampled."""
        self.drawn += 1
        if self.matcher is not None:
            self.matcher.accept(token)
        if self._penalised:
            self._seen.add(token)

    def uniform(self) -> float:
        """The number in [0, 1) of the next draw: splitmix64 (Steele et al., OOPSLA 2014)."""
        return (_mix(self._stream + (self.drawn + 1) * _GOLDEN) >> 11) * 2.0**-53

    @property
    def edits(self) -> bool:
        """Whether ``edit`` would change anything now."""
        return (
            (self.matcher is not None and self.matcher.masks)
            or self._bias is not None
            or self.drawn < self._without_eos
            or (self._penalised and len(self._seen) > 0)
        )

    def edit(self, logits: Floats) -> None:
        """Steps 1 to 4 in place, on this row's [vocabulary] logits."""
        goes_on = self.matcher is None or self.matcher.mask(logits, self._eos)
        if self._bias is not None:
            ids, values = self._bias
            logits[ids] += values
        if self.drawn < self._without_eos and goes_on:
            # A tokenizer may know more ids than the model gives logits for.
            logits[self._eos[self._eos < len(logits)]] = -np.inf
        if len(self._seen):
            self._penalise(logits)

    def _penalise(self, logits: Floats) -> None:
        p = self.params
        ids, counts = self._seen.arrays()
        value = logits[ids]
        if p.repetition_penalty != 1:
            factor = np.float32(p.repetition_penalty)
            value = np.where(value > 0, value / factor, value * factor)
        if p.frequency_penalty != 0:
            value -= np.float32(p.frequency_penalty) * counts
        if p.presence_penalty != 0:
            value -= np.float32(p.presence_penalty) * (counts > 0)
        logits[ids] = value


States = Sequence[SamplerState]  # of the rows of a step


class _Counts:
    """How often each token seen came in the output; 0 for one that only the prompt holds."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._index = {token: i for i, token in enumerate(dict.fromkeys(prompt))}
        size = max(64, 2 * len(self._index))
        # Made anew at every step, they would cost as much as all the rest of its sampling.
        self._ids = np.zeros(size, np.int64)
        self._ids[: len(self._index)] = list(self._index)
        self._counts = np.zeros(size, np.float32)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, token: int) -> None:
        """Count one more."""
        place = self._index.setdefault(token, len(self._index))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    def arrays(self) -> tuple[Ints, Floats]:
        """Ids, each once, and their counts."""
        size = len(self._index)
        return self._ids[:size], self._counts[:size]


def _bias(pairs: Iterable[tuple[int, float]]) -> tuple[Ints, Floats] | None:
    """Ids, each once, and what is added to them; None for nothing."""
    sums: dict[int, float] = {}
    for token, value in pairs:
        sums[token] = sums.get(token, 0.0) + value
    if not sums:
        return None
    return np.array(list(sums), np.int64), np.array(list(sums.values()), np.float32)


def _mix(z: int) -> int:
    """splitmix64's finalizer, on 64 bits."""
    z &= _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)
