"""Slots of a model with a sliding window, the random Gemma: llama.cpp keeps the window only."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.loading import load_runner
from runtimes.errors import ModelError
from runtimes.models.memory import estimate
from runtimes.models.registry import read_model
from runtimes.planner.measure import Workload, measure_depths
from runtimes.runner import Logits, Runner, StepRow
from runtimes.settings import RunnerSettings
from tests.quantize.logits import in_company

BATCH = 32
LENGTH = 440  # beyond what llama.cpp keeps for a window of 16 and a batch of 32: 256 cells
TOKENS = random.Random(3).choices(range(10, 380), k=LENGTH + 40)
# llama.cpp's attention groups its sums by where cells lie, which with a window depends on what was
# there before. Measured: 0.004 of logits that spread by 1.3.
REGROUPED = 0.02


@pytest.fixture(scope="module", params=["f16", "f16 unified", "onnx-int8"])
def loaded(request: pytest.FixtureRequest, builds) -> Iterator[Runner]:
    recipe, _, unified = request.param.partition(" ")
    model = read_model(resolve(builds("gemma3").out, recipe=recipe))
    if model.runtime == "llamacpp":  # genai_config.json does not say
        assert model.sliding_window == 16
    settings = RunnerSettings(slots=3, context=512, batch=BATCH, unified_kv=bool(unified))
    runner = load_runner(model, settings)
    yield runner
    runner.close()


@pytest.fixture
def runner(loaded: Runner) -> Runner:
    for slot in range(loaded.capabilities.slots):
        loaded.kv.trim(slot, 0)
    return loaded


def prefill(runner: Runner, slot: int, start: int, end: int) -> Logits:
    for at in range(start, end, BATCH):
        part = TOKENS[at : min(end, at + BATCH)]
        logits = runner.execute((StepRow(slot, at, part, 1),)).copy()
    return logits


def same(runner: Runner, a: Logits, b: Logits) -> bool:
    exact = runner.capabilities.runtime == "onnx"
    return bool(np.abs(a - b).max() <= (0 if exact else REGROUPED))


def test_a_prefix_goes_on_from_a_copied_and_from_a_saved_slot(runner):
    prefill(runner, 0, 0, LENGTH)
    expected = prefill(runner, 0, LENGTH, LENGTH + 40)
    runner.kv.trim(0, 0)
    prefill(runner, 0, 0, LENGTH)
    data = runner.kv.save(0)
    runner.kv.copy(0, 1, LENGTH)
    assert same(runner, prefill(runner, 1, LENGTH, LENGTH + 40), expected)
    runner.kv.load(2, data, LENGTH)
    assert same(runner, prefill(runner, 2, LENGTH, LENGTH + 40), expected)
    assert same(runner, prefill(runner, 0, LENGTH, LENGTH + 40), expected)


@pytest.mark.parametrize("at", [100, 300])
def test_a_slot_goes_back_to_a_checkpoint(runner, at):
    """From beyond what the window's cells hold, in its own slot and in another."""
    prefill(runner, 0, 0, at)
    expected = prefill(runner, 0, at, at + 40)
    runner.kv.trim(0, 0)
    prefill(runner, 0, 0, at)
    point = runner.kv.checkpoint(0)
    prefill(runner, 0, at, LENGTH)
    runner.kv.copy(0, 1, LENGTH)
    for slot in (1, 0):
        runner.kv.rewind(slot, point, at)
        assert same(runner, prefill(runner, slot, at, at + 40), expected)
    with pytest.raises(ModelError):
        runner.kv.copy(0, 2, LENGTH)  # it holds fewer


@pytest.mark.parametrize("length", [10, 300])
def test_a_checkpoint_is_as_large_as_estimated(builds, length):
    model = read_model(resolve(builds("gemma3").out, recipe="f16"))
    settings = RunnerSettings(slots=1, context=512, batch=BATCH)
    runner = load_runner(model, settings)
    prefill(runner, 0, 0, length)
    expected = estimate(model, settings).checkpoint
    held = len(runner.kv.checkpoint(0))
    runner.close()
    assert held <= 1.1 * expected
    assert length < 16 or held >= 0.9 * expected


def test_a_part_is_given_where_it_is_still_there_and_refused_otherwise(runner):
    prefill(runner, 0, 0, 100)
    expected = prefill(runner, 0, 100, 101)
    runner.kv.trim(0, 0)
    prefill(runner, 0, 0, 100)
    prefill(runner, 0, 100, LENGTH)
    if runner.capabilities.can_trim:
        assert runner.capabilities.runtime == "onnx"
        runner.kv.copy(0, 1, 100)
        assert same(runner, prefill(runner, 1, 100, 101), expected)
        runner.kv.trim(0, 100)
        assert same(runner, prefill(runner, 0, 100, 101), expected)
    else:
        for attempt in (
            lambda: runner.kv.copy(0, 1, 100),
            lambda: runner.kv.trim(0, 100),
            lambda: runner.kv.shift(0, 4, 100),
        ):
            with pytest.raises(ModelError, match=r"cannot|whole"):
                attempt()
        prefill(runner, 1, 0, 20)  # the target that was refused is empty
        shortest = runner.kv.shortest(0)
        assert 100 < shortest < LENGTH - BATCH, "more cells than the window has"
        runner.kv.trim(0, shortest)
        found = prefill(runner, 0, shortest, shortest + 40)
        runner.kv.trim(0, 0)
        prefill(runner, 0, 0, shortest)
        assert same(runner, found, prefill(runner, 0, shortest, shortest + 40))


@pytest.mark.parametrize("recipe", ["f16", "onnx-int8"])
def test_reproducible_rows_are_the_same_in_any_company(builds, recipe):
    """In a window's cells, which are used again and again, too."""
    path = resolve(builds("gemma3").out, recipe=recipe)
    prompts = [TOKENS[:300], TOKENS[:40], TOKENS[5:440], TOKENS[:300], TOKENS[:129]]
    many, one = (in_company(path, prompts, TOKENS[:200], slots, 512) for slots in (3, 1))
    assert many == one


def test_speeds_behind_more_than_a_window(builds):
    work = Workload((1, 3), prompt_tokens=6, decode_tokens=6, depths=(0, LENGTH))
    path, settings = resolve(builds("gemma3").out, recipe="f16"), RunnerSettings(batch=BATCH)
    found = measure_depths(path, work, repeats=2, settings=settings)
    assert min(found[LENGTH].prefill_tps, *found[LENGTH].decode_tps.values()) > 0
