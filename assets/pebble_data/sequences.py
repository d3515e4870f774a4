"""Counting, and the order of days and months."""

from __future__ import annotations

import random

from pebble_data.base import Sample, Split, phrased, split_of, turn

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)

_COUNT = (
    ("up", 1, ("Count from {} to {}.", "Count up from {} to {}.", "Please count from {} to {}.")),
    ("down", -1, ("Count down from {} to {}.", "Count backwards from {} to {}.")),
    ("twos", 2, ("Count from {} to {} by twos.", "Count by twos from {} to {}.")),
)
_NEIGHBOUR = (
    "What {} comes {} {}?",
    "Which {} comes {} {}?",
    "Which {} is right {} {}?",
    "Tell me the {} {} {}.",
    "Name the {} that comes {} {}.",
)
_ORDER = ("Put these {} in order: {}.", "Sort these {}: {}.", "Order the {} {}.")


def count(rng: random.Random, split: Split) -> Sample:
    while True:
        kind, step, phrasings = rng.choice(_COUNT)
        start = rng.randint(0, 90)
        end = start + step * rng.randint(3, 8)
        if 0 <= end <= 100 and split_of(f"count|{kind}|{start}|{end}") is split:
            numbers = range(start, end + (1 if step > 0 else -1), step)
            return turn(
                "count", rng.choice(phrasings).format(start, end), ", ".join(map(str, numbers))
            )


def neighbour(rng: random.Random, split: Split) -> Sample:
    while True:
        unit, cycle = rng.choice((("day", DAYS), ("month", MONTHS)))
        place = rng.randrange(len(cycle))
        side, step = rng.choice((("after", 1), ("before", -1)))
        here, found = cycle[place], cycle[(place + step) % len(cycle)]
        asked = phrased(rng, split, f"{here}|{side}", _NEIGHBOUR)
        if asked:
            return turn(
                "neighbour", asked.format(unit, side, here), f"{found} comes {side} {here}."
            )


def order(rng: random.Random, split: Split) -> Sample:
    while True:
        unit, cycle = rng.choice((("days", DAYS), ("months", MONTHS)))
        places = rng.sample(range(len(cycle)), rng.choice((3, 3, 4)))
        given = ", ".join(cycle[p] for p in places)
        if split_of(f"order|{given}") is split:
            answer = ", ".join(cycle[p] for p in sorted(places))
            return turn("order", rng.choice(_ORDER).format(unit, given), answer)
