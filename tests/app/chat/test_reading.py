"""When a prompt will be read, from how it went so far."""

from app.chat.figures import Reading, ReadMeter


def test_the_time_left_is_that_at_the_measured_rate() -> None:
    meter = ReadMeter()
    assert meter.at(0.0, 0, 1000) == Reading(0, 1000)
    assert meter.at(1.0, 100, 1000) == Reading(100, 1000), "one reading is no rate"
    assert meter.at(2.0, 300, 1000) == Reading(300, 1000, 3.5)
    assert meter.at(2.5, 300, 1000) == Reading(300, 1000, 3.0), "it goes on between two readings"
    assert meter.at(99.0, 300, 1000).left_s == 0.0
    assert meter.at(4.0, 1200, 1000).read == 1000


def test_what_was_cached_is_no_speed_and_a_few_tokens_are_none() -> None:
    meter = ReadMeter()
    meter.at(0.0, 900, 1000)
    assert meter.at(1.0, 910, 1000).left_s is None
    assert meter.at(2.0, 940, 1000).left_s == 3.0
