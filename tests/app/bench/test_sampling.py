"""The share of sampling in a step, on real files."""

from __future__ import annotations

import pytest

from app.bench.sampling import PARAMETERS, sampling_share
from runtimes.errors import RequestError


def test_every_set_of_parameters_is_measured(pebble_file):
    result = sampling_share(pebble_file, rows=2, repeats=2)
    assert result.vocabulary == 768
    assert result.step_s > 0
    figures = result.to_json()["sampling"]
    assert list(figures) == list(PARAMETERS)
    for name, cost in figures.items():
        assert cost["real_s"] > 0
        assert cost["flat_s"] > 0
        assert result.share(name) == result.costs[name].real_s / result.step_s
        assert any(name in line for line in result.lines())


def test_more_repeats_than_the_context_holds(pebble_file):
    with pytest.raises(RequestError, match="take fewer"):
        sampling_share(pebble_file, rows=1, repeats=5000)
