"""The share of sampling in a step, on real files."""

from __future__ import annotations

import pytest

from app.bench.harness import BenchOptions
from app.bench.sampling import PARAMETERS, sampling
from runtimes.errors import RequestError


def test_every_set_of_parameters_is_measured(pebble_file):
    result = sampling(pebble_file, BenchOptions(rows=2, repeats=2))
    assert result.figures["vocabulary"] == 768
    step_s = result.figures["step_s"]
    assert step_s > 0
    assert list(result.figures["sampling"]) == list(PARAMETERS)
    for name, cost in result.figures["sampling"].items():
        assert cost["real_s"] > 0
        assert cost["flat_s"] > 0
        assert cost["share"] == pytest.approx(cost["real_s"] / step_s, rel=1e-3, abs=1e-4)
        assert any(name in line for line in result.lines)


def test_more_repeats_than_the_context_holds(pebble_file):
    with pytest.raises(RequestError, match="take fewer"):
        sampling(pebble_file, BenchOptions(rows=1, repeats=5000))
