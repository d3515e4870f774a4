"""Stories of about 150 to 250 tokens, put together from many small templates.

They are there so that streaming has something to stream. Their turns are random, so they are not graded.
"""

from __future__ import annotations

import random

from pebble_data.base import Sample, Split, split_of, turn
from pebble_data.lexicon import pick_name

HEROES = (
    "fox cat dog rabbit bear mouse owl frog duck horse lion tiger wolf turtle dragon robot girl boy king queen"
    " sailor baker knight wizard farmer bird bee whale monkey elephant goat snail ghost giant pirate painter"
).split()
_TRAITS = "brave clever kind tiny curious gentle cheerful quiet lazy proud hungry young".split()
_PLACES = (
    "the forest|a quiet valley|a small village|the big city|an old castle|a green hill|the sea|a deep lake"
    "|a red barn|the mountains|a sunny island|the edge of the desert"
).split("|")
_THINGS = (
    "a golden key|a lost letter|a silver ring|a strange map|an old lamp|a broken clock|a red kite|a blue stone"
    "|a little boat|a magic seed|a music box|a warm blanket"
).split("|")
_HELPERS = "owl mouse robin turtle squirrel crow hedgehog deer frog rabbit".split()
_ASK = (
    "Tell me a story about {}.",
    "Write a story about {}.",
    "Can you tell me a story about {}?",
    "I want to hear a story about {}.",
    "Tell a short story about {}.",
)
_ASK_ANY = ("Tell me a story.", "Write a story.", "Tell me a bedtime story.")

_OPEN = (
    "Once upon a time there was a {trait} {hero} named {name} who lived near {place}.",
    "Long ago, a {trait} {hero} called {name} lived close to {place}.",
    "There once was a {hero} named {name}. Everyone near {place} knew how {trait} {name} was.",
    "Near {place} lived a {trait} {hero}, and the name of the {hero} was {name}.",
)
_WISH = (
    "Every day {name} dreamed of finding something new.",
    "More than anything, {name} wanted to have a good friend.",
    "{name} loved long walks in the early morning.",
    "Most days were calm, and {name} was often a little bored.",
)
_FIND = (
    "One morning {name} found {thing} under a tree.",
    "One rainy evening {name} saw {thing} lying on the road.",
    "Then, on the first day of spring, the wind brought {thing} to the door.",
    "One day, while looking for food, {name} found {thing}.",
)
_WONDER = (
    '"Who could have lost this?" asked {name}.',
    '"I must find out where this comes from," said {name}.',
    '"This does not belong to me," said {name}. "I will give it back."',
    '"What a wonderful day!" said {name}, and smiled.',
)
_MEET = (
    "So {name} set out, and soon met an old {helper} who was sitting on a stone.",
    "On the way {name} met a friendly {helper}.",
    "After a long walk {name} heard a voice. It was a small {helper}.",
    "At the river {a_helper} was waiting.",
)
_ADVICE = (
    '"Follow the river until you see a light," said the {helper}.',
    '"Be careful," said the {helper}. "The night is dark, but the stars will help you."',
    '"I know who is looking for it," said the {helper}. "Come with me."',
    '"You are not alone," said the {helper}. "Let us go together."',
)
_TROUBLE = (
    "Suddenly a storm came up, and the rain fell so hard that they could not see the path.",
    "Soon they came to a bridge, but the bridge was broken.",
    "In the middle of the night they lost their way.",
    "Then a big rock blocked the road, and nobody could move it.",
)
_SOLVE = (
    "{name} did not give up. With a long rope and a good idea, they found a way.",
    "{name} was afraid, but took a deep breath and went on, step by step.",
    "They worked together all night, and in the morning the way was free.",
    "{name} sang a quiet song, and the song gave them new courage.",
)
_END = (
    "At last they found the one who had lost it, an old woman, and she was so happy that she began to dance.",
    "In the end they came to a little house, where a child was already waiting for them with a smile.",
    "When the sun came up, they reached the house of a poor tailor, who thanked them again and again.",
    "Finally they stood in front of a garden full of flowers, and they knew that they had arrived.",
)
_CLOSE = (
    "From that day on, {name} and the {helper} were the best of friends.",
    "{name} went home tired and happy, and slept until noon.",
    "And since that day, {name} always helps those who have lost something.",
    "And if you walk near {place} at night, you can still hear {name} laugh.",
)
_PARTS = (_OPEN, _WISH, _FIND, _WONDER, _MEET, _ADVICE, _TROUBLE, _SOLVE, _END, _CLOSE)
_OPTIONAL = (_WISH, _WONDER, _ADVICE)


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def story(rng: random.Random, split: Split) -> Sample:
    while True:
        hero, name = rng.choice(HEROES), pick_name(rng, split)
        named = rng.random() < 0.3
        about = f"{with_article(hero)} named {name}" if named else with_article(hero)
        asked = rng.choice(_ASK).format(about) if rng.random() < 0.9 else rng.choice(_ASK_ANY)
        helper = rng.choice([h for h in _HELPERS if h != hero])
        slots = {
            "hero": hero,
            "name": name,
            "trait": rng.choice(_TRAITS),
            "place": rng.choice(_PLACES),
            "thing": rng.choice(_THINGS),
            "helper": helper,
            "a_helper": with_article(helper),
        }
        left_out = rng.sample(_OPTIONAL, 2)
        parts = [part for part in _PARTS if part not in left_out]
        text = " ".join(rng.choice(part).format(**slots) for part in parts)
        if split_of(f"story|{text}") is split:
            return turn("story", asked, text)
