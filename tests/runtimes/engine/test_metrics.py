"""Figures of an engine's completions."""

import random
import statistics

import pytest

from runtimes.engine.metrics import Percentiles


@pytest.mark.parametrize("count", [2, 3, 17, 101, 1000])
def test_percentiles_are_those_of_the_standard_library(count):
    dice = random.Random(count)
    values = [dice.lognormvariate(-3, 2) for _ in range(count)]
    found = Percentiles.of(values)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert (found.p50, found.p90, found.p99) == (cuts[49], cuts[89], cuts[98])
