"""Samples, and the rule that keeps held-out items out of the training text."""

from __future__ import annotations

import enum
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Split(enum.Enum):
    """Who may see an item: the training loop, its progress check, or the graded set."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Sample:
    """A conversation; every assistant message in it is a wanted answer, the last one is graded."""

    task: str
    messages: tuple[Message, ...]

    @property
    def answer(self) -> str:
        return self.messages[-1].content

    @property
    def question(self) -> tuple[Message, ...]:
        return self.messages[:-1]


Generator = Callable[[random.Random, Split], Sample]


def split_of(key: str, test: float = 0.06, dev: float = 0.06) -> Split:
    """The same key always lands in the same split; about `test` and `dev` of all keys are held out."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    if place < test:
        return Split.TEST
    return Split.DEV if place < test + dev else Split.TRAIN


def turn(task: str, question: str, answer: str) -> Sample:
    return Sample(task, (Message("user", question), Message("assistant", answer)))


def phrased(
    rng: random.Random, split: Split, subject: str, phrasings: Sequence[str], always: int = 1
) -> str | None:
    """A phrasing of `subject` that belongs to `split`, or None when the subject has none there.

    Facts cannot be held out (nobody can guess a capital), but the pair of a fact and a phrasing can.
    The first `always` phrasings always train: they are the ones people really type.
    """
    mine = [
        p
        for i, p in enumerate(phrasings)
        if (Split.TRAIN if i < always else split_of(f"{subject}|{p}", 0.1, 0.1)) is split
    ]
    return rng.choice(mine) if mine else None
