"""Conversations in which a name or a number from an earlier turn is asked for later."""

from __future__ import annotations

import random

from pebble_data.arithmetic import add, compare
from pebble_data.base import Generator, Message, Sample, Split, split_of, turn
from pebble_data.capitals import capital
from pebble_data.facts import fact
from pebble_data.identity import identity
from pebble_data.lexicon import pick_name
from pebble_data.sequences import neighbour

_SAY_NAME = ("My name is {}.", "Hi, I am {}.", "Hello, my name is {}.", "You can call me {}.")
_ASK_NAME = ("What is my name?", "Do you remember my name?", "Who am I?", "Tell me my name.")
_SAY_NUMBER = (
    "Remember the number {}.",
    "My lucky number is {}.",
    "Please keep the number {} in mind.",
)
_ASK_NUMBER = ("What is my number?", "Which number did I tell you?", "What was the number?")
_FILLERS: tuple[Generator, ...] = (capital, fact, add, neighbour, identity, compare)

_NO_NAME = "You have not told me your name."
_NO_NUMBER = "You have not told me a number."


def _number(rng: random.Random, split: Split) -> int:
    while True:
        number = rng.randint(2, 999)
        if split_of(f"number|{number}") is split:
            return number


class Told:
    """What one conversation has heard so far, and the questions about it."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._split = split
        self._name: str | None = None
        self._number: int | None = None

    def tell(self) -> tuple[Message, ...]:
        if self._rng.random() < 0.5:
            self._name = pick_name(self._rng, self._split)
            said = self._rng.choice(_SAY_NAME).format(self._name)
            return turn("", said, f"Nice to meet you, {self._name}.").messages
        self._number = _number(self._rng, self._split)
        said = self._rng.choice(_SAY_NUMBER).format(self._number)
        return turn("", said, f"I will remember {self._number}.").messages

    def ask(self) -> tuple[Message, ...]:
        if self._rng.random() < 0.5:
            answer = f"Your name is {self._name}." if self._name else _NO_NAME
            return turn("", self._rng.choice(_ASK_NAME), answer).messages
        answer = _NO_NUMBER if self._number is None else f"Your number is {self._number}."
        return turn("", self._rng.choice(_ASK_NUMBER), answer).messages


def remember(rng: random.Random, split: Split) -> Sample:
    """The told name or number is held out; fillers are training items, so they add no new question."""
    name, number = pick_name(rng, split), _number(rng, split)
    tell_name = turn("", rng.choice(_SAY_NAME).format(name), f"Nice to meet you, {name}.").messages
    tell_number = turn(
        "", rng.choice(_SAY_NUMBER).format(number), f"I will remember {number}."
    ).messages
    ask_name = turn("", rng.choice(_ASK_NAME), f"Your name is {name}.").messages
    ask_number = turn("", rng.choice(_ASK_NUMBER), f"Your number is {number}.").messages
    about = rng.random()
    told = (
        [tell_name, tell_number] if about < 0.3 else [tell_name] if about < 0.65 else [tell_number]
    )
    rng.shuffle(told)
    asked = {id(tell_name): ask_name, id(tell_number): ask_number}[id(rng.choice(told))]
    messages: list[Message] = []
    for piece in told:
        messages += piece
        for _ in range(rng.choice((0, 0, 1))):
            messages += rng.choice(_FILLERS)(rng, Split.TRAIN).messages
    if len(messages) == 2:
        messages += rng.choice(_FILLERS)(rng, Split.TRAIN).messages
    return Sample("remember", (*messages, *asked))


def forgot(rng: random.Random, split: Split) -> Sample:
    """The same questions when nothing, or only the other thing, was told."""
    while True:
        fillers = [
            rng.choice(_FILLERS)(rng, Split.TRAIN).messages for _ in range(rng.choice((0, 1, 1)))
        ]
        told = rng.random()
        if told < 0.4:
            number = _number(rng, split)
            say = turn(
                "", rng.choice(_SAY_NUMBER).format(number), f"I will remember {number}."
            ).messages
            asked = turn("", rng.choice(_ASK_NAME), _NO_NAME).messages
        elif told < 0.8:
            name = pick_name(rng, split)
            say = turn(
                "", rng.choice(_SAY_NAME).format(name), f"Nice to meet you, {name}."
            ).messages
            asked = turn("", rng.choice(_ASK_NUMBER), _NO_NUMBER).messages
        else:
            say = ()
            question, answer = rng.choice(
                [(q, _NO_NAME) for q in _ASK_NAME] + [(q, _NO_NUMBER) for q in _ASK_NUMBER]
            )
            asked = turn("", question, answer).messages
        messages = (*say, *(m for filler in fillers for m in filler), *asked)
        home = split_of("forgot|" + "|".join(m.content for m in messages)) if not say else split
        if home is split:
            return Sample("forgot", messages)
