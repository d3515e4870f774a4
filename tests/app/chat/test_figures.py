"""The rate of tokens from batches, and when a prompt will be read; times are given, none is
measured."""

import pytest

from app.chat.figures import Meter, Reading, ReadMeter


def test_it_falls_when_nothing_comes_and_recovers():
    meter = Meter()
    meter.begin(0.0)
    for step in range(1, 41):
        meter.read(step / 10, 10)
    assert meter.rate == pytest.approx(100, rel=0.01)
    for step in range(41, 51):
        meter.read(step / 10, 0)
    assert meter.rate == pytest.approx(50, rel=0.06)
    for step in range(51, 71):
        meter.read(step / 10, 0)
    assert meter.rate == 0
    for step in range(71, 92):
        meter.read(step / 10, 10)
    assert meter.rate == pytest.approx(100, rel=0.01)


def test_tokens_that_came_with_the_first_are_no_speed():
    """A first piece of many tokens took as long as the prompt, not the moment since."""
    meter = Meter()
    meter.begin(0.0, 14)
    meter.read(0.02, 14)
    assert (meter.tokens, meter.rate) == (14, 0.0)
    meter.read(1.0, 20)
    assert meter.rate == pytest.approx(20)


def test_the_time_left_is_that_at_the_measured_rate():
    meter = ReadMeter()
    assert meter.at(0.0, 0, 1000) == Reading(0, 1000)
    assert meter.at(1.0, 100, 1000) == Reading(100, 1000), "one reading is no rate"
    assert meter.at(2.0, 300, 1000) == Reading(300, 1000, 3.5)
    assert meter.at(2.5, 300, 1000) == Reading(300, 1000, 3.0), "it goes on between two readings"
    assert meter.at(99.0, 300, 1000).left_s == 0.0
    assert meter.at(4.0, 1200, 1000).read == 1000
