"""Long conversations: many short questions, and now and then one about what was told long before.

They only measure how the model does far into a conversation; training does not draw them yet.
"""

from __future__ import annotations

import random

from pebble_data.arithmetic import add, compare, multiply, subtract
from pebble_data.base import Generator, Message, Split
from pebble_data.capitals import capital, country
from pebble_data.facts import fact
from pebble_data.identity import identity, unknown
from pebble_data.memory import Told
from pebble_data.sequences import count, neighbour, order
from pebble_data.words import letter, reverse, spell

_SHORT: tuple[Generator, ...] = (
    *(capital, country, fact, add, subtract, multiply, compare, identity, unknown),
    *(count, neighbour, order, letter, spell, reverse),
)


def long_chat(rng: random.Random, split: Split, turns: int) -> tuple[Message, ...]:
    """About `turns` questions. What was told belongs to `split`, all other questions to training."""
    told = Told(rng, split)
    messages: list[Message] = []
    for _ in range(turns):
        chance = rng.random()
        if chance < 0.08 or (not messages and chance < 0.6):
            messages += told.tell()
        elif chance < 0.2:
            messages += told.ask()
        else:
            messages += rng.choice(_SHORT)(rng, Split.TRAIN).messages
    return tuple(messages)
