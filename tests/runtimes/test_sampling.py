"""Sampling against a plain, unvectorised account of the same steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.errors import RequestError
from runtimes.request import SamplingParams
from runtimes.sampling import SamplerState, log_probability, sample


def distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The probabilities that the documented steps give, one row, in float64."""
    x = np.exp((logits - logits.max()).astype(np.float64) / params.temperature)
    order = np.argsort(-logits, kind="stable")
    keep = np.zeros(len(x), bool)
    keep[order[: params.top_k or len(x)]] = True
    x = np.where(keep, x, 0)
    x /= x.sum()
    reached = np.cumsum(x[order])
    if params.top_p < 1:
        x[order[(reached - x[order]) >= params.top_p]] = 0
    x[x < params.min_p * x.max()] = 0
    return x / x.sum()


def state(seed: int = 0, prompt: tuple[int, ...] = (), **fields) -> SamplerState:
    return SamplerState(SamplingParams(seed=seed, **fields), prompt)


@pytest.mark.parametrize("vocabulary", [300, 6000])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7},
        {"temperature": 1.5, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 3.0, "top_p": 0.999},
    ],
)
def test_draws_follow_the_distribution(fields, vocabulary):
    logits = np.random.default_rng(1).normal(0, 2, (1, vocabulary)).astype(np.float32)
    draws = 4000
    states = [state(seed, **fields) for seed in range(draws)]
    tokens = sample(np.repeat(logits, draws, axis=0), states)
    expected = distribution(logits[0], SamplingParams(**fields))
    assert expected[tokens].min() > 0, "nothing outside what the limits keep"
    # Cells with few expected draws are pooled; chi-square's mean is its degrees of freedom.
    big = expected * draws >= 5
    observed = np.bincount(tokens, minlength=vocabulary)
    o = np.append(observed[big], observed[~big].sum())
    e = np.append(expected[big], expected[~big].sum()) * draws
    chi = ((o - e)[e > 0] ** 2 / e[e > 0]).sum()
    freedom = max(int((e > 0).sum()) - 1, 1)
    assert chi < freedom + 5 * np.sqrt(2 * freedom)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(1, 12), st.data())
def test_a_row_does_not_depend_on_its_companions(seed, rows, data):
    rng = np.random.default_rng(seed % 1000)
    logits = rng.normal(0, 3, (rows, 2000)).astype(np.float32)
    kinds = st.sampled_from(
        [
            {},
            {"temperature": 0.8},
            {"temperature": 1.0, "top_k": 5},
            {"temperature": 1.2, "top_p": 0.9},
            {"temperature": 0.0, "repetition_penalty": 1.3},
            {"temperature": 0.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        ]
    )
    chosen = [data.draw(kinds) for _ in range(rows)]
    together = sample(logits, [state(seed + i, (1, 2, 3), **k) for i, k in enumerate(chosen)])
    alone = [
        int(sample(logits[i : i + 1], [state(seed + i, (1, 2, 3), **k)])[0])
        for i, k in enumerate(chosen)
    ]
    assert together.tolist() == alone


def test_penalties_by_hand():
    logits = np.array([[2.0, -1.0, 3.0, 0.5]], np.float32)
    row = state(prompt=(0,), temperature=0.0, repetition_penalty=2.0)
    row.accept(2)
    # 2/2, -1, 3/2, 0.5 -> token 2 still wins; a second sighting changes nothing.
    assert sample(logits, [row])[0] == 2
    strong = state(prompt=(0,), temperature=0.0, repetition_penalty=8.0)
    strong.accept(2)
    assert sample(logits, [strong])[0] == 3
    frequent = state(prompt=(2, 2, 2), temperature=0.0, frequency_penalty=0.6)
    assert sample(logits, [frequent])[0] == 2, "the prompt does not count"
    frequent.accept(2)
    frequent.accept(2)
    assert sample(logits, [frequent])[0] == 0
    present = state(temperature=0.0, presence_penalty=1.5)
    present.accept(2)
    assert sample(logits, [present])[0] == 0


def test_logits_are_left_as_they_are():
    logits = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
    before = logits.copy()
    seen = state(prompt=(1, 2), temperature=1.0, repetition_penalty=1.5, top_p=0.5)
    sample(logits, [seen, state(temperature=0.3)])
    assert (logits == before).all()


def test_same_seed_same_draws_and_successive_draws_differ():
    logits = np.zeros((1, 50000), np.float32)
    first, second = state(7, temperature=1.0), state(7, temperature=1.0)
    drawn = []
    for _ in range(5):
        a, b = sample(logits, [first])[0], sample(logits, [second])[0]
        assert a == b
        first.accept(int(a))
        second.accept(int(b))
        drawn.append(a)
    assert len(set(drawn)) == 5


def test_log_probability_is_that_of_the_softmax():
    logits = np.array([[1000.0, 999.0, -1000.0]], np.float32)
    got = log_probability(logits, np.array([1]))
    assert got[0] == pytest.approx(-1 - np.log1p(np.exp(-1)), abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"top_k": -1},
        {"max_tokens": 0},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"frequency_penalty": float("inf")},
        {"stop": ("",)},
    ],
)
def test_bad_parameters_are_refused_by_name(fields):
    with pytest.raises(RequestError, match=next(iter(fields))):
        SamplingParams(**fields)
