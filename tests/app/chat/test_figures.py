"""The rate of tokens from batches, and when a prompt will be read; times are given, none is
measured."""

import pytest

from app.chat.figures import Meter, Reading, ReadMeter


@pytest.mark.parametrize(("tps", "period"), [(3.0, 0.08), (200.0, 0.9)])
def test_a_steady_stream_has_its_rate_from_the_beginning(tps: float, period: float):
    """However often it is read; at most one token is uncertain."""
    meter, begun, seen = Meter(), False, 0
    meter.read(1.0, 0)
    assert (meter.rate, meter.tokens) == (None, 0)
    first = 10.3
    for step in range(1, int(8 / period)):
        now = 10.0 + step * period
        come = int((now - first) * tps) + 1 if now >= first else 0
        if come and not begun:
            meter.begin(first)
            begun = True
        meter.read(now, come - seen)
        seen = come
        if begun and now - first > 1 / tps:
            span = min(now - first, 2.0)
            assert meter.rate is not None
            assert abs(meter.rate - tps) <= 1.01 / span
    assert meter.tokens == seen


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


def test_a_long_time_without_readings_counts_whole():
    """The terminal was suspended, or another screen was shown."""
    meter = Meter()
    meter.begin(0.0)
    meter.read(0.1, 11)
    meter.read(30.1, 3000)
    assert meter.rate == pytest.approx(100)
    meter.read(30.2, 10)
    assert meter.rate == pytest.approx(100)


def test_tokens_that_came_with_the_first_are_no_speed():
    """A first piece of many tokens took as long as the prompt, not the moment since."""
    meter = Meter()
    meter.begin(0.0, 14)
    meter.read(0.02, 14)
    assert (meter.tokens, meter.first_tokens, meter.rate) == (14, 14, 0.0)
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


def test_what_was_cached_is_no_speed_and_a_few_tokens_are_none():
    meter = ReadMeter()
    meter.at(0.0, 900, 1000)
    assert meter.at(1.0, 910, 1000).left_s is None
    assert meter.at(2.0, 940, 1000).left_s == 3.0
