"""Small JSON objects from a sentence."""

from __future__ import annotations

import json
import random

from pebble_data.base import Sample, Split, split_of, turn
from pebble_data.capitals import CITIES
from pebble_data.lexicon import WORDS, pick_name

_COLORS = "red blue green yellow black white brown pink orange purple gray".split()
_ASK = (
    "Make a JSON object with {}.",
    "Write a JSON object with {}.",
    "Give me JSON with {}.",
    "Turn this into JSON: {}.",
)
_SHAPES = (
    ("name", "age"),
    ("name", "city"),
    ("item", "price"),
    ("item", "color"),
    ("name", "age", "city"),
    ("item", "count", "color"),
)


def _value(rng: random.Random, key: str, split: Split) -> str | int:
    if key == "name":
        return pick_name(rng, split)
    if key in ("age", "price", "count"):
        return rng.randint(1, 99)
    return rng.choice({"city": CITIES, "item": WORDS, "color": _COLORS}[key])


def record(rng: random.Random, split: Split) -> Sample:
    while True:
        shape = rng.choice(_SHAPES)
        fields = {key: _value(rng, key, split) for key in shape}
        answer = json.dumps(fields)
        if split_of(f"json|{answer}", 0.1, 0.1) is split:
            said = [f"{key} {value}" for key, value in fields.items()]
            listed = ", ".join(said[:-1]) + " and " + said[-1]
            return turn("json", rng.choice(_ASK).format(listed), answer)
