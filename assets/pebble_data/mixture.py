"""All tasks by name, how often each is drawn, and the conversations made from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from pebble_data import (
    arithmetic,
    capitals,
    facts,
    identity,
    memory,
    records,
    sequences,
    stories,
    words,
)
from pebble_data.base import Generator, Message, Sample, Split

TASKS: dict[str, Generator] = {
    "capital": capitals.capital,
    "country": capitals.country,
    "fact": facts.fact,
    "add": arithmetic.add,
    "subtract": arithmetic.subtract,
    "multiply": arithmetic.multiply,
    "compare": arithmetic.compare,
    "spell": words.spell,
    "reverse": words.reverse,
    "letter": words.letter,
    "count": sequences.count,
    "neighbour": sequences.neighbour,
    "order": sequences.order,
    "json": records.record,
    "identity": identity.identity,
    "unknown": identity.unknown,
    "remember": memory.remember,
    "forgot": memory.forgot,
    "story": stories.story,
}
GRADED = tuple(name for name in TASKS if name != "story")

# Draws per task before the training loop shifts weight towards what is still wrong. Memorising 400
# facts and carrying digits need the most examples; stories are few because each is 200 tokens long.
WEIGHTS: dict[str, float] = {
    "capital": 16,
    "country": 14,
    "fact": 10,
    "add": 14,
    "subtract": 12,
    "multiply": 5,
    "compare": 3,
    "spell": 9,
    "reverse": 11,
    "letter": 3,
    "count": 5,
    "neighbour": 3,
    "order": 6,
    "json": 5,
    "identity": 3,
    "unknown": 2,
    "remember": 5,
    "forgot": 2,
    "story": 3,
}

SYSTEM_PROMPTS = (
    "You are Pebble, a small helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer the question.",
    "Be kind and short.",
)
_WHOLE = frozenset(
    {"remember", "forgot", "story"}
)  # never glued to other questions: they use the past


def draw(rng: random.Random, split: Split, weights: Mapping[str, float]) -> Sample:
    names = list(weights)
    name = rng.choices(names, [weights[n] for n in names])[0]
    return TASKS[name](rng, split)


def conversations(rng: random.Random, weights: dict[str, float]) -> Iterator[tuple[Message, ...]]:
    """Endless training conversations; `weights` may be changed while they are drawn."""
    while True:
        sample = draw(rng, Split.TRAIN, weights)
        messages = list(sample.messages)
        if sample.task not in _WHOLE and rng.random() < 0.25:
            for _ in range(rng.randint(1, 3)):
                more = draw(rng, Split.TRAIN, weights)
                if more.task not in _WHOLE:
                    messages += more.messages
        if rng.random() < 0.08:
            messages.insert(0, Message("system", rng.choice(SYSTEM_PROMPTS)))
        yield tuple(messages)


def held_out(
    split: Split, per_task: int, seed: int, names: tuple[str, ...] = GRADED
) -> list[Sample]:
    """`per_task` different samples of each task, none of which can occur in training."""
    found: list[Sample] = []
    for name in names:
        rng = random.Random(f"{seed}|{split.value}|{name}")
        seen: set[tuple[Message, ...]] = set()
        for _ in range(200 * per_task):
            sample = TASKS[name](rng, split)
            if sample.question not in seen:
                seen.add(sample.question)
                found.append(sample)
            if len(seen) == per_task:
                break
    return found
