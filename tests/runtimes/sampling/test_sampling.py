"""Sampling against a plain, unvectorised account of the same steps."""

from __future__ import annotations

import numpy as np
import pytest

from runtimes.errors import RequestError
from runtimes.grammars import check_params
from runtimes.request import SamplingParams
from runtimes.sampling import SamplerState, sample


def drawn(logits: np.ndarray, states: list[SamplerState]) -> list[int]:
    return [one.token for one in sample(logits, states)]


def state(seed: int = 0, prompt: tuple[int, ...] = (), **fields) -> SamplerState:
    return SamplerState(SamplingParams(seed=seed, **fields), prompt)


def test_penalties_count_every_token_of_a_long_text():
    row = state(prompt=(400, 401), frequency_penalty=0.5)
    text = [token for token in range(300) for _ in range(token % 3 + 1)]
    for token in text:
        row.accept(token)
    logits = np.zeros(500, np.float32)
    row.edit(logits)
    assert logits.tolist() == (-0.5 * np.bincount(text, minlength=500)).tolist()


@pytest.mark.parametrize(("name", "taken"), [("presence_penalty", 1.5), ("frequency_penalty", 4.5)])
def test_presence_counts_once_and_frequency_each_time(name, taken):
    row = state(**{name: 1.5})
    for _ in range(3):
        row.accept(5)
    logits = np.zeros(8, np.float32)
    row.edit(logits)
    assert logits.tolist() == [-taken if token == 5 else 0.0 for token in range(8)]


def test_logits_are_left_as_they_are():
    logits = np.random.default_rng(0).normal(size=(2, 3000)).astype(np.float32)
    before = logits.copy()
    seen = state(prompt=(1, 2), temperature=1.0, repetition_penalty=1.5, top_p=0.5)
    drawn(logits, [seen, state(temperature=0.3)])
    assert (logits == before).all()


def test_same_seed_same_draws_and_successive_draws_differ():
    logits = np.zeros((1, 50000), np.float32)
    first, second = state(7, temperature=1.0), state(7, temperature=1.0)
    tokens = []
    for _ in range(5):
        a, b = drawn(logits, [first])[0], drawn(logits, [second])[0]
        assert a == b
        first.accept(int(a))
        second.accept(int(b))
        tokens.append(a)
    assert len(set(tokens)) == 5


@pytest.mark.parametrize("vocabulary", [300, 6000])
def test_samples_of_one_request_draw_from_streams_of_their_own(vocabulary):
    logits = np.zeros((1, vocabulary), np.float32)

    def text(seed, index):
        row = SamplerState(SamplingParams(temperature=1.0, seed=seed), sample_index=index)
        tokens = []
        for _ in range(8):
            tokens.append(int(drawn(logits, [row])[0]))
            row.accept(tokens[-1])
        return tuple(tokens)

    plain = state(5, temperature=1.0)
    assert text(5, 0)[0] == drawn(logits, [plain])[0], "the first sample is that of n=1"
    texts = {(seed, index): text(seed, index) for seed in (5, 6) for index in range(4)}
    assert len(set(texts.values())) == 8
    assert all(text(*which) == tokens for which, tokens in texts.items())


def test_streams_of_samples_are_uniform_and_unlike_each_other():
    params = SamplingParams(temperature=1.0, seed=1)
    numbers = np.array(
        [SamplerState(params, sample_index=index).uniform() for index in range(4000)]
    )
    cells = np.bincount((numbers * 20).astype(int), minlength=20)
    assert ((cells - 200) ** 2 / 200).sum() < 19 + 5 * np.sqrt(38)
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / np.sqrt(4000)


def test_without_a_seed_every_request_draws_its_own():
    params = SamplingParams(temperature=1.0)
    assert len({SamplerState(params).uniform() for _ in range(50)}) == 50


@pytest.mark.parametrize(("vocabulary", "temperature"), [(300, 0.0), (6000, 1.0)])
def test_no_end_of_sequence_below_min_tokens(vocabulary, temperature):
    logits = np.zeros((2, vocabulary), np.float32)
    logits[:, 7] = 50.0
    logits[:, 9] = 40.0
    params = SamplingParams(temperature=temperature, seed=1, min_tokens=2)
    # An id that the model has no logit for is of no consequence.
    row = SamplerState(params, eos_ids=frozenset({7, vocabulary + 3}))
    free = SamplerState(params)
    tokens = []
    for _ in range(4):
        token, other = drawn(logits, [row, free])
        assert other == 7, "no eos ids, no ban"
        row.accept(int(token))
        tokens.append(token)
    assert tokens == [9, 9, 7, 7]


def test_a_bias_beyond_the_vocabulary_is_refused_by_id():
    params = SamplingParams(logit_bias=((3, 1.0), (300, 1.0)))
    check_params(params, 301)
    with pytest.raises(RequestError, match=r"logit_bias .* 300; .* 0\.\.299"):
        check_params(params, 300)
    with pytest.raises(RequestError, match="-1"):
        check_params(SamplingParams(logit_bias=((-1, 1.0),)), 300)


@pytest.mark.parametrize("vocabulary", [300, 4097, 6000])
@pytest.mark.parametrize("broken", [np.nan, np.inf, None])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.9},
    ],
)
def test_rows_without_a_distribution_are_named(vocabulary, broken, fields):
    for place in (0, vocabulary - 1):
        logits = np.random.default_rng(0).normal(0, 1, (3, vocabulary)).astype(np.float32)
        if broken is None:
            logits[1] = -np.inf
        else:
            logits[1, place] = broken
        states = [state(i, **fields) for i in range(3)]
        found = sample(logits, states)
        assert [one.error is None for one in found] == [True, False, True]
        assert "not numbers" in found[1].error
        assert [found[0], found[2]] == sample(logits[[0, 2]], [states[0], states[2]])


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
