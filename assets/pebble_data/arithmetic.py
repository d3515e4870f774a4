"""Sums and differences of two-digit numbers, small products, and which number is larger."""

from __future__ import annotations

import random

from pebble_data.base import Sample, Split, phrased, split_of, turn

_ADD = (
    "What is {} + {}?",
    "What is {} plus {}?",
    "Add {} and {}.",
    "{} + {}",
    "Calculate {} + {}.",
)
_SUB = ("What is {} - {}?", "What is {} minus {}?", "{} - {}", "Calculate {} - {}.")
_MUL = (
    "What is {} times {}?",
    "What is {} * {}?",
    "Multiply {} by {}.",
    "{} * {}",
    "Calculate {} * {}.",
)
_CMP = (
    "Which is larger, {} or {}?",
    "Which number is bigger, {} or {}?",
    "What is larger, {} or {}?",
)


def _number(rng: random.Random) -> int:
    return rng.randint(0, 9) if rng.random() < 0.1 else rng.randint(10, 99)


def add(rng: random.Random, split: Split) -> Sample:
    """A pair is held out in both orders: 24 + 38 would give 38 + 24 away."""
    while True:
        a, b = _number(rng), _number(rng)
        if split_of(f"add|{min(a, b)}|{max(a, b)}") is split:
            return turn("add", rng.choice(_ADD).format(a, b), f"{a} + {b} = {a + b}")


def subtract(rng: random.Random, split: Split) -> Sample:
    while True:
        a, b = _number(rng), _number(rng)
        a, b = max(a, b), min(a, b)
        if split_of(f"sub|{a}|{b}") is split:
            return turn("subtract", rng.choice(_SUB).format(a, b), f"{a} - {b} = {a - b}")


def multiply(rng: random.Random, split: Split) -> Sample:
    """Tables up to ten are learnt by heart, so only the pair of product and phrasing is held out."""
    while True:
        a, b = rng.randint(1, 10), rng.randint(1, 10)
        asked = phrased(rng, split, f"mul|{a}|{b}", _MUL)
        if asked:
            return turn("multiply", asked.format(a, b), f"{a} * {b} = {a * b}")


def compare(rng: random.Random, split: Split) -> Sample:
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if a != b and split_of(f"cmp|{min(a, b)}|{max(a, b)}") is split:
            return turn(
                "compare", rng.choice(_CMP).format(a, b), f"{max(a, b)} is larger than {min(a, b)}."
            )
