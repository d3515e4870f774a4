"""A step that asks for logits after several tokens of a row."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from quantize.resolve import resolve
from runtimes.engine.loading import load_runner
from runtimes.errors import ModelError
from runtimes.models.registry import read_model
from runtimes.runner import StepRow
from runtimes.settings import RunnerSettings
from tests.runtimes.engine.test_kv import OTHER, PROMPT, REGROUPED


@pytest.mark.parametrize("unified", [False, True])
def test_logits_after_the_last_tokens_of_a_row(pebble_built, unified):
    settings = RunnerSettings(slots=2, context=128, unified_kv=unified)
    path = resolve(pebble_built, recipe="q8_0")
    with contextlib.closing(load_runner(read_model(path), settings)) as runner:
        assert runner.capabilities.most_logits == 65
        rows = (StepRow(0, 0, PROMPT[:10], 3), StepRow(1, 0, OTHER[:12], 1))
        found = runner.execute(rows).copy()
        expected = [*runner.score(PROMPT[:10])[-3:], runner.score(OTHER[:12])[-1]]
        assert np.abs(found - np.array(expected)).max() <= REGROUPED
        with pytest.raises(ModelError, match="66 rows of logits in a call; 65 fit"):
            runner.execute((StepRow(0, 0, OTHER[:66], 66),))


@pytest.mark.parametrize("recipe", ["onnx-int4", "onnx-int8"])
def test_a_graph_gives_logits_after_the_last_tokens(pebble_built, recipe):
    path = resolve(pebble_built, recipe=recipe)
    runner = load_runner(read_model(path), RunnerSettings(slots=2, context=64))
    with contextlib.closing(runner):
        found = runner.execute((StepRow(0, 0, PROMPT[:10], 3),)).copy()
        assert np.abs(found - runner.score(PROMPT[:10])[-3:]).max() <= REGROUPED
