"""Log-probabilities against a float64 softmax."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimes.sampling.sampler import log_probabilities


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True))


def test_by_hand():
    logits = np.array([[1000.0, 999.0, -1000.0]], np.float32)
    got = log_probabilities(logits, np.array([1]), 0).chosen
    assert got[0] == pytest.approx(-1 - np.log1p(np.exp(-1)), abs=1e-5)


@pytest.mark.parametrize("vocabulary", [3, 300, 6001, 50_000])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    count=st.integers(0, 20),
    ties=st.booleans(),
    banned=st.booleans(),
)
def test_the_likeliest_tokens_and_their_values(vocabulary, seed, rows, count, ties, banned):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, vocabulary)).astype(np.float32)
    if ties:
        logits = np.round(logits)
    if banned:
        logits[0, rng.permutation(vocabulary)[: vocabulary - 2]] = -np.inf
    tokens = rng.integers(0, vocabulary, rows)
    before = logits.copy()
    got = log_probabilities(logits, tokens, count)
    assert (logits == before).all()
    expected = log_softmax(logits)
    shown = min(count, vocabulary)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :shown]
    assert got.ids.tolist() == order.tolist()
    np.testing.assert_allclose(got.values, np.take_along_axis(expected, order, 1), atol=2e-5)
    chosen = expected[np.arange(rows), tokens]
    np.testing.assert_allclose(got.chosen, chosen, atol=2e-5)
    assert log_probabilities(logits, tokens, 0).chosen.tolist() == got.chosen.tolist()
    assert got.likeliest(rows - 1, count).keys() == set(order[-1].tolist())
    # Not a companion's business either.
    alone = log_probabilities(logits[-1:], tokens[-1:], count)
    assert alone.chosen[0] == got.chosen[-1]
    assert alone.values[0].tolist() == got.values[-1].tolist()
