"""Spelling words, reversing them, and naming their first and last letters.

Letters are separated by hyphens so that each is one token: the model has to learn which letters its
own word pieces are made of, and then says them one by one.
"""

from __future__ import annotations

import random

from pebble_data.base import Sample, Split, turn
from pebble_data.lexicon import pick_word

_SPELL = ("Spell the word {}.", "Spell {}.", "How do you spell {}?", "Can you spell {}?")
_REVERSE = ("Reverse the word {}.", "Spell {} backwards.", "Reverse {}.", "Write {} backwards.")
_LETTER = (
    "What is the {} letter of {}?",
    "Tell me the {} letter of {}.",
    "Which is the {} letter of {}?",
)


def spell(rng: random.Random, split: Split) -> Sample:
    word = pick_word(rng, split)
    return turn("spell", rng.choice(_SPELL).format(word), "-".join(word))


def reverse(rng: random.Random, split: Split) -> Sample:
    word = pick_word(rng, split, longest=6)
    return turn("reverse", rng.choice(_REVERSE).format(word), "-".join(reversed(word)))


def letter(rng: random.Random, split: Split) -> Sample:
    word = pick_word(rng, split)
    which = rng.choice(("first", "last"))
    found = word[0] if which == "first" else word[-1]
    return turn(
        "letter",
        rng.choice(_LETTER).format(which, word),
        f"The {which} letter of {word} is {found}.",
    )
