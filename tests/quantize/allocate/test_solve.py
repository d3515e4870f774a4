"""The choice of types against a search of all of them."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.allocate.solve import (
    TypeChoice,
    TypeTable,
    Unit,
    loss,
    read_table,
    size,
    solve,
    write_table,
)
from quantize.errors import ToolError


def table(seed: int, units: int, kinds: int) -> TypeTable:
    """Units of very different sizes, whose divergence falls with the bytes, not always."""
    draw = random.Random(seed)
    made = []
    for number in range(units):
        rows, matters = draw.choice((64, 256, 1024, 8192)), 10 ** draw.uniform(-5, -2)
        bits = sorted(draw.uniform(2, 16) for _ in range(kinds))
        choices = tuple(
            TypeChoice(f"t{i}", int(rows * 32 * b / 8), matters * 4**-b * draw.uniform(0.7, 1.4))
            for i, b in enumerate(bits)
        )
        made.append(Unit(f"u{number}", 1, rows, 32, choices))
    return TypeTable(tuple(made), 4096, "text")


def every(found: TypeTable) -> list[tuple[int, float]]:
    """Bytes and divergence of every choice that there is."""
    return [
        (sum(c.bytes for c in picked), sum(c.kl for c in picked))
        for picked in itertools.product(*(unit.choices for unit in found.units))
    ]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0), st.booleans())
def test_the_choice_is_that_of_an_exhaustive_search(
    seed: int, units: int, share: float, smallest: bool
):
    """The smallest file of a divergence, or the best file of a size."""
    found, (cost, bound) = table(seed, units, 4), (size, loss) if smallest else (loss, size)
    all_of_them = [figures if smallest else figures[::-1] for figures in every(found)]
    limits = sorted(taken for _, taken in all_of_them)
    limit = limits[int(share * (len(limits) - 1))]
    # A thousandth of the bound is what counting in steps may leave unused.
    kept = limits[0] + (limit - limits[0]) * 0.999
    least = min(price for price, taken in all_of_them if taken <= kept)
    total = found.total(solve(found.units, cost, bound, limit))
    price, taken = (total.bytes, total.kl) if smallest else (total.kl, total.bytes)
    assert taken <= limit * (1 + 1e-9)
    assert price <= least * (1 + 1e-9)


def test_what_nothing_can_keep_has_no_solution():
    found = table(1, 3, 4)
    least, lowest = (min(figures) for figures in zip(*every(found), strict=True))
    assert solve(found.units, loss, size, least - 1) is None
    assert solve(found.units, size, loss, lowest * 0.999) is None


def test_eight_groups_with_all_types_are_within_two_percent_of_all_that_there_is():
    found = table(7, 8, 6)  # 1.7 million files
    bits = [[(c.bytes, c.kl) for c in unit.choices] for unit in found.units]
    # Both halves of the units apart, so that a sorted half answers each of the other's.
    left, right = (
        sorted(
            (sum(c[0] for c in picked), sum(c[1] for c in picked))
            for picked in itertools.product(*half)
        )
        for half in (bits[:4], bits[4:])
    )
    bound = 0.3 * sum(max(c.kl for c in unit.choices) for unit in found.units)
    fewest = min(
        taken + next((other for other, more in right if kl + more <= bound), 10**12)
        for taken, kl in left
    )
    types = solve(found.units, size, loss, bound)
    assert found.total(types).bytes <= fewest * 1.02


UNITS = (
    Unit(
        "blk.0.attn_q.weight",
        1,
        2,
        32,
        (TypeChoice("q8_0", 68, 1e-4), TypeChoice("q4_0", 36, 1e-2)),
    ),
)


def test_a_table_is_read_as_it_was_written(tmp_path: Path):
    table = TypeTable(UNITS, 4096, "text.txt")
    write_table(tmp_path / "t.json", table)
    assert read_table(tmp_path / "t.json") == table
    total = table.total({"blk.0.attn_q.weight": "q4_0"})
    assert (total.bytes, total.kl) == (36, 1e-2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("0.01", "0.001"),
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda text: json.dumps({**json.loads(text), "sha256": None}),
    ],
)
def test_a_table_that_was_changed_is_refused(tmp_path: Path, damage):
    path = tmp_path / "t.json"
    write_table(path, TypeTable(UNITS, 4096, "text.txt"))
    path.write_text(damage(path.read_text()))
    with pytest.raises(ToolError, match=r"t\.json was changed or damaged.*delete it"):
        read_table(path)
