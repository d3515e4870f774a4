"""Which type each tensor gets: the least of one total that keeps a bound on the other."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from quantize.allocate.table import TypeChoice, Unit

_STEPS = 1 << 15  # of the bound; what rounding up to them leaves is spent one tensor at a time

_PRICES = 60

Figure = Callable[[Unit, TypeChoice], float]


def size(_unit: Unit, choice: TypeChoice) -> float:
    """Its bytes."""
    return choice.bytes


def loss(_unit: Unit, choice: TypeChoice) -> float:
    """The divergence that it is predicted to cause."""
    return choice.kl


def solve(
    units: Sequence[Unit], cost: Figure, bound: Figure, limit: float
) -> dict[str, str] | None:
    """The types by tensor of the least ``cost`` whose ``bound`` adds up to ``limit`` at most; None
    where even the least of all choices is beyond it.

    A knapsack of one choice a unit, by dynamic programming over the bound in `_STEPS`.
    """
    options = [
        [(cost(unit, choice), bound(unit, choice)) for choice in unit.choices] for unit in units
    ]
    least = [min(taken for _, taken in option) for option in options]
    room = limit - sum(least)
    if room < 0:
        return None
    # Of each unit its least choice is paid for; what is shared out is what is left.
    step = max(room / _STEPS, 1e-300)
    total = np.zeros(_STEPS + 1)
    picks = []
    for option, low in zip(options, least, strict=True):
        found = np.full(_STEPS + 1, np.inf)
        pick = np.zeros(_STEPS + 1, np.uint8)
        for i, (price, taken) in enumerate(option):
            steps = _steps(taken - low, step)
            if steps > _STEPS:
                continue
            reached = total[: _STEPS + 1 - steps] + price
            better = reached < found[steps:]
            found[steps:][better] = reached[better]
            pick[steps:][better] = i
        total = found
        picks.append(pick)
    at, chosen = int(total.argmin()), list[int]()
    for option, low, pick in zip(reversed(options), reversed(least), reversed(picks), strict=True):
        chosen.append(int(pick[at]))
        at -= _steps(option[chosen[-1]][1] - low, step)
    chosen.reverse()
    _spend(options, chosen, limit)
    return {unit.name: unit.choices[i].kind for unit, i in zip(units, chosen, strict=True)}


def mixes(units: Sequence[Unit]) -> list[TypeChoice]:
    """Bytes and predicted divergence of some of the best choices there are, by size: those that a
    price of bytes in divergence, from very low to very high, picks."""
    found: dict[float, TypeChoice] = {}
    for price in np.logspace(-16, 2, _PRICES):
        worth = partial(_priced, price)
        picked = [min(unit.choices, key=worth) for unit in units]
        total = sum(c.bytes for c in picked)
        found[total] = TypeChoice("", total, sum(c.kl for c in picked))
    return [found[total] for total in sorted(found)]


def _priced(price: float, choice: TypeChoice) -> float:
    return choice.bytes * price + choice.kl


def _steps(taken: float, step: float) -> int:
    return int(np.ceil(taken / step - 1e-9))


def _spend(
    options: Sequence[Sequence[tuple[float, float]]], chosen: list[int], limit: float
) -> None:
    """Make the most useful single changes that what is left of the bound still allows."""
    left = limit - sum(option[i][1] for option, i in zip(options, chosen, strict=True))
    while True:
        changes = [
            (option[now][0] - cost, unit, other)
            for unit, (option, now) in enumerate(zip(options, chosen, strict=True))
            for other, (cost, taken) in enumerate(option)
            if cost < option[now][0] and taken - option[now][1] <= left
        ]
        if not changes:
            return
        _, unit, other = max(changes)
        left -= options[unit][other][1] - options[unit][chosen[unit]][1]
        chosen[unit] = other
