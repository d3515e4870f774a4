"""Tokens chosen from a row's largest logits alone, and llama.cpp finding these itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtimes.engine.engine import Engine
from runtimes.engine.loading import load_runner
from runtimes.llamacpp.top_k import _PATIENCE, WIDTH
from runtimes.models.registry import backend, read_model
from runtimes.request import Request, SamplingParams
from runtimes.runner import Runner, StepRow, TopKLogits
from runtimes.sampling import SamplerState, sample
from runtimes.settings import RunnerSettings
from tests.runtimes.engine.gates import held

PARAMS = (
    {},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 1},
    {"temperature": 5.0, "top_k": 50, "min_p": 0.05},
    {"temperature": 1e-9, "top_k": 7},
    {"temperature": 1.0, "top_k": 63},
)


@pytest.fixture(scope="module", params=[False, True], ids=["split", "unified"])
def runner(request: pytest.FixtureRequest, gguf: Path) -> Iterator[Runner]:
    settings = RunnerSettings(
        slots=3, context=256, unified_kv=request.param, device_sampling=True, scored=4
    )
    runner = load_runner(read_model(gguf), settings)
    yield runner
    runner.close()


@pytest.mark.parametrize("vocabulary", [300, 6000])
@pytest.mark.parametrize("fields", PARAMS)
def test_the_largest_logits_give_the_token_that_all_of_them_give(fields, vocabulary):
    rng = np.random.default_rng(3)
    # Coarse values, so that many are equal.
    logits = (rng.normal(0, 2, (32, vocabulary)) * 8).round().astype(np.float32) / 8
    states = [SamplerState(SamplingParams(seed=seed, **fields)) for seed in range(len(logits))]
    best = np.argsort(-logits, axis=1, kind="stable")[:, :WIDTH]
    mixed = rng.permuted(best, axis=1).astype(np.int32)
    largest = TopKLogits(mixed, np.take_along_axis(logits, mixed, axis=1))
    assert sample(largest, states) == sample(logits, states)


def test_broken_rows_are_named():
    values = np.zeros((3, WIDTH), np.float32)
    values[1] = np.nan
    largest = TopKLogits(np.tile(np.arange(WIDTH, dtype=np.int32), (3, 1)), values)
    found = sample(largest, [SamplerState(SamplingParams()) for _ in range(3)])
    assert [one.token for one in found] == [0, None, 0]
    assert "not numbers" in found[1].error


@pytest.mark.parametrize(
    ("fields", "enough"),
    [
        ({}, 1),
        ({"top_k": 5}, 1),
        ({"temperature": 0.5, "top_k": 5}, 5),
        ({"temperature": 0.5}, 0),
        ({"logprobs": True}, 0),
        ({"n": 1, "best_of": 2}, 0),
        ({"logit_bias": ((1, 2.0),)}, 0),
        ({"min_tokens": 1}, 0),
        ({"repetition_penalty": 1.1}, 0),
        ({"presence_penalty": 0.1}, 0),
        ({"frequency_penalty": 0.1}, 0),
    ],
)
def test_how_many_logits_are_enough(fields, enough):
    assert SamplingParams(**fields).top_k_needed == enough


def step(runner: Runner, position: int, enough: tuple[int, ...], tokens=(7,)):
    rows = [
        StepRow(slot, position, tokens, 1, top_k_needed=count) for slot, count in enumerate(enough)
    ]
    return runner.execute(rows)


def test_llama_cpp_hands_out_the_largest_logits(runner):
    """The same ones as it hands out whole, until a row needs all of them, and again later."""
    if any("llvmpipe" in one.description for one in backend("llamacpp").devices()):
        pytest.skip("lavapipe of Mesa 22.3: a damaged heap when samplers come back")
    for slot in range(3):
        runner.kv.trim(slot, 0)
    for slot in range(3):
        prompt = [5, 17, 33, 8, 90, 5 + slot]
        plan = (StepRow(slot, 0, prompt, 1, top_k_needed=1),)
        found = runner.execute(plan)
        assert isinstance(found, TopKLogits)
        runner.kv.trim(slot, 0)
        whole = runner.execute((StepRow(slot, 0, prompt, 1),))
        assert isinstance(whole, np.ndarray)
        assert found.ids.shape == (1, WIDTH)
        best = np.argsort(-whole[0], kind="stable")[:WIDTH]
        assert sorted(found.ids[0].tolist()) == sorted(best.tolist())
        assert np.array_equal(found.values[0], whole[0][found.ids[0]])
        # Whole logits were asked for a moment ago.
        for at in range(_PATIENCE):
            plan = (StepRow(slot, 6 + at, (9,), 1, top_k_needed=4),)
            assert isinstance(runner.execute(plan), np.ndarray)
        runner.kv.trim(slot, 6)
    together = step(runner, 6, (1, 40, WIDTH - 1))
    assert isinstance(together, TopKLogits)
    assert len(together) == 3
    assert isinstance(step(runner, 7, (1, 0, 1)), np.ndarray)


def test_rows_apart_are_joined_and_scores_are_whole(runner):
    for slot in range(3):
        runner.kv.trim(slot, 0)
        runner.execute((StepRow(slot, 0, (4, 5, 6 + slot), 1),))
    for at in range(_PATIENCE + 1):
        step(runner, 3 + at, (1, 1, 1))
    at = 4 + _PATIENCE
    rows = (StepRow(0, at, (7, 8), 1, top_k_needed=1), StepRow(2, at, (7,), 1, top_k_needed=1))
    found = runner.execute(rows)  # two calls where the slots have caches of their own
    assert isinstance(found, TopKLogits)
    assert len(found) == 2
    assert runner.score([4, 5, 6, 7, 8]).shape == (5, runner.capabilities.vocab_size)


def test_answers_do_not_depend_on_who_looks_for_the_largest(gguf):
    answers = []
    for device in (False, True):
        settings = RunnerSettings(slots=4, context=256, device_sampling=device)
        with Engine.load(gguf, settings) as engine:
            wanted = [
                *({"seed": 5, **fields} for fields in PARAMS),
                {"temperature": 0.9, "top_k": 20, "n": 3, "seed": 2},
                {"temperature": 1.0, "seed": 2},  # all logits
                {"logprobs": True},
                {"min_tokens": 4},
            ]
            # Both run the same rows together: whether one moves depends on the machine's speed.
            engine._core.kv.compacts = False
            with held(engine):
                streams = [
                    engine.submit(
                        Request(
                            [20 + i, 30, 31] * 4, SamplingParams(**{"max_tokens": 12, **fields})
                        )
                    )
                    for i, fields in enumerate(wanted * 2)
                ]
            done = [stream.result(60) for stream in streams]
            answers.append([[choice.text for choice in one.choices] for one in done])
    assert answers[0] == answers[1]
