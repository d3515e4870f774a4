"""The fast ways to a token against a plain account of the documented steps, one row at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.request import SamplingParams
from runtimes.sampling import SamplerState
from runtimes.sampling.whole_row import in_nucleus
from tests.runtimes.sampling.test_sampling import drawn

# float32 sums over a vocabulary may differ from float64's by this share.
ROUNDING = 1e-6


@dataclass(eq=False)
class Row:
    """A row's logits with all that its token may depend on."""

    logits: np.ndarray
    params: SamplingParams
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    eos_ids: frozenset[int] = frozenset()
    uniform: float | None = None  # None: the seed's
    state: SamplerState = field(init=False)

    def __post_init__(self):
        kind = SamplerState if self.uniform is None else fixed(self.uniform)
        self.state = kind(self.params, self.prompt, eos_ids=self.eos_ids)
        for token in self.output:
            self.state.accept(token)


def fixed(uniform: float) -> type[SamplerState]:
    class Fixed(SamplerState):
        def uniform(self):
            return uniform

    return Fixed


def edited(row: Row) -> np.ndarray:
    """Bias, ban and penalties, token by token, float32."""
    p, x = row.params, row.logits.copy()
    for token, bias in p.logit_bias:
        x[token] += np.float32(bias)
    if len(row.output) < p.min_tokens:
        for token in row.eos_ids:
            x[token] = -np.inf
    for token in set(row.prompt) | set(row.output):
        factor = np.float32(p.repetition_penalty)
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
        count = np.float32(row.output.count(token))
        if count:
            x[token] -= np.float32(p.frequency_penalty) * count + np.float32(p.presence_penalty)
    return x


def kept(x: np.ndarray, p: SamplingParams, top_p: float, min_p: float) -> np.ndarray:
    """Probabilities of what top-k, top-p and min-p keep, by id, float64; 0 elsewhere."""
    with np.errstate(over="ignore"):
        weights = np.exp((x.astype(np.float64) - x.max()) / p.temperature)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    left = order[: p.top_k or len(x)]
    if top_p < 1:
        total, reached, nucleus = weights[left].sum(), 0.0, []
        for token in left:
            nucleus.append(token)
            reached += weights[token]
            if reached >= top_p * total:
                break
        left = nucleus
    left = [token for token in left if weights[token] >= min_p]
    result = np.zeros(len(x))
    result[left] = weights[left]
    return result / result.sum()


def fits(row: Row, token: int) -> bool:
    """Whether the documented steps lead to ``token``, within what rounding may move."""
    x, p = edited(row), row.params
    if p.temperature == 0:
        return token == int(x.argmax())
    uniform = row.state.uniform()
    for nudge in (0, -ROUNDING, ROUNDING):
        share = p.top_p if p.top_p == 1 else p.top_p + nudge
        probabilities = kept(x, p, share, p.min_p * (1 + nudge))
        reached = np.cumsum(probabilities)
        before = reached[token] - probabilities[token]
        if probabilities[token] > 0 and before - ROUNDING <= uniform <= reached[token] + ROUNDING:
            return True
    return False


@st.composite
def logits_of(draw, vocabulary: int) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.normal(0, draw(st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0])), vocabulary)
    peaks = draw(st.sampled_from([0, 3, 100]))
    x[rng.integers(0, vocabulary, peaks)] += rng.exponential(6, peaks) + 5
    if draw(st.booleans()):
        x = np.round(x * 2) / 2  # ties, as 8-bit logits have them
    banned = draw(st.sampled_from([0, vocabulary // 2, vocabulary - 1]))
    x[rng.permutation(vocabulary)[:banned]] = -np.inf
    return x.astype(np.float32)


def params_of(vocabulary: int) -> st.SearchStrategy[SamplingParams]:
    token = st.integers(0, vocabulary - 1)
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-40, 1e-3, 0.3, 0.8, 1.0, 2.5, 1e6, 1e40]),
        top_k=st.sampled_from([0, 0, 1, 2, 40, 1500, 10**6]),
        top_p=st.sampled_from([1.0, 1.0, 1e-9, 0.1, 0.5, 0.95, 0.9999]),
        min_p=st.sampled_from([0.0, 0.0, 1e-4, 0.05, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
        logit_bias=st.lists(st.tuples(token, st.floats(-100, 100, width=16)), max_size=3).map(
            tuple
        ),
        min_tokens=st.sampled_from([0, 2]),
        seed=st.integers(0, 2**64),
    )


@st.composite
def rows_of(draw, vocabulary: int) -> Row:
    token = st.integers(0, vocabulary - 1)
    uniform = draw(st.sampled_from([None, None, None, 0.0, 1 - 2**-53]))
    row = Row(
        draw(logits_of(vocabulary)),
        draw(params_of(vocabulary)),
        tuple(draw(st.lists(token, max_size=5))),
        tuple(draw(st.lists(token, max_size=4))),
        frozenset(draw(st.lists(token, max_size=2))),
        uniform,
    )
    if not np.isfinite(edited(row)).any():
        row.logits[:] = 1.0  # everything was banned: another test's matter
    return row


# Both sides of the vocabulary up to which whole rows are sorted, and no multiple of any block.
@pytest.mark.parametrize("vocabulary", [5, 300, 4097, 6001])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_row_of_a_mixed_batch_follows_the_documented_steps(vocabulary, data):
    rows = data.draw(st.lists(rows_of(vocabulary), min_size=1, max_size=5))
    logits = np.stack([row.logits for row in rows])
    tokens = drawn(logits, [row.state for row in rows])
    for row, token in zip(rows, tokens, strict=True):
        assert fits(row, token), row.params


@pytest.mark.parametrize("vocabulary", [300, 4096, 6001])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_token_alone_and_among_others(vocabulary, data):
    rows = data.draw(st.lists(rows_of(vocabulary), min_size=2, max_size=6))
    logits = np.stack([row.logits for row in rows])
    together = drawn(logits, [row.state for row in rows])
    alone = [drawn(row.logits[None], [row.state])[0] for row in rows]
    assert together == alone
    backwards = drawn(logits[::-1], [row.state for row in rows[::-1]])
    assert backwards[::-1] == alone


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.3, 0.95])
def test_the_nucleus_of_a_large_flat_vocabulary(spread, top_p):
    """Where the nucleus is neither few tokens nor all, and its edge is found from a sample."""
    rng = np.random.default_rng(3)
    for seed in range(2):
        logits = rng.normal(0, spread, 30_011).astype(np.float32)
        row = Row(logits, SamplingParams(temperature=1.0, top_p=top_p, seed=seed))
        assert fits(row, drawn(logits[None], [row.state])[0])


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("bump", [-1.0, 1.0, 4.0])
def test_a_sample_that_misleads_does_not_change_the_nucleus(bump, top_p):
    """Every 4th token, just those that the sample sees, is likelier or less likely than others."""
    logits = np.random.default_rng(5).normal(0, 0.05, 30_011).astype(np.float32)
    logits[::4] += bump
    row = Row(logits, SamplingParams(temperature=1.0, top_p=top_p), uniform=0.7)
    assert fits(row, drawn(logits[None], [row.state])[0])


@pytest.mark.parametrize("vocabulary", [300, 6001])
def test_the_ends_of_the_uniform_numbers_are_the_first_and_the_last_token(vocabulary):
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 1, (50, vocabulary)).astype(np.float32)
    for uniform, token in ((0.0, 0), (1 - 2**-53, vocabulary - 1)):
        states = [fixed(uniform)(SamplingParams(temperature=1.0)) for _ in logits]
        assert drawn(logits, states) == [token] * 50


@pytest.mark.parametrize("vocabulary", [300, 6001])
def test_weights_that_a_great_temperature_makes_equal_rank_by_logit(vocabulary):
    logits = np.random.default_rng(6).normal(0, 1, vocabulary).astype(np.float32)
    for uniform in np.linspace(0.05, 0.95, 7):
        row = Row(logits, SamplingParams(temperature=1e12, top_p=0.5), uniform=float(uniform))
        assert fits(row, drawn(logits[None], [row.state])[0])


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_the_nucleus_ends_within_equal_logits_at_the_lowest_ids(spread):
    rng = np.random.default_rng(7)
    logits = rng.permutation(np.repeat(rng.normal(0, spread, 3800), 8)).astype(np.float32)
    weights = np.exp(logits - logits.max())
    total = float(weights.sum(dtype=np.float64))
    order = np.argsort(-logits, kind="stable")
    reached = np.cumsum(weights[order], dtype=np.float64)
    for share in np.linspace(0.1, 0.99, 20):
        found = np.flatnonzero(in_nucleus(weights, logits, share, total))
        size = int(np.searchsorted(reached, share * total)) + 1
        assert abs(len(found) - size) <= 1, "rounding may move the edge by a token, no more"
        assert set(found) == set(order[: len(found)])
