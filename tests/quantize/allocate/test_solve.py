"""The choice of types against a search of all of them."""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.allocate.solve import (
    TypeChoice,
    TypeTable,
    Unit,
    choose_cache,
    loss,
    read_table,
    size,
    solve,
    write_table,
)
from quantize.build.preflight import memory_parts
from quantize.errors import ToolError
from quantize.options import Options, SourceOptions
from quantize.quality.fidelity import CacheLosses
from quantize.recipes import find_recipe
from quantize.source import open_source
from runtimes.settings import kv_bits, kv_pair
from tests.quantize.shapes import SHAPES, make_random_model


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


LOSSES = {"q8_0:f16": 1e-4, "f16:q8_0": 2e-5, "q4_0:f16": 3e-2, "f16:q4_0": 1e-2}
MIXES = [TypeChoice("", 1000 * i, math.exp(-i)) for i in range(1, 11)]
PAIRS = list(itertools.product(("f16", "q8_0", "q4_0"), repeat=2))


def room(total: float):
    return lambda kind: total - 500 * kv_bits(kind)


def loss_of(pair: tuple[str, str], total: float) -> float:
    """By the best mix alone, without what lies between two."""
    kind = ":".join(pair)
    fitting = [mix.kl for mix in MIXES if mix.bytes <= room(total)(kind)]
    own = sum(LOSSES.get(one, 0.0) for one in (f"{pair[0]}:f16", f"f16:{pair[1]}"))
    return min(fitting, default=math.inf) + own


@given(st.floats(3_000, 25_000))
def test_the_choice_loses_no_more_than_any_other(total: float) -> None:
    chosen = choose_cache(MIXES, room(total), CacheLosses(1024, LOSSES))
    best = min(loss_of(pair, total) for pair in PAIRS)
    if math.isinf(best):
        assert chosen == "q4_0"  # the smallest, for the error that follows
    else:  # weights may lie between two mixes, which are a factor of e apart
        assert loss_of(kv_pair(chosen), total) <= math.e * best


def test_much_memory_takes_no_smaller_type_and_little_the_smallest() -> None:
    found = CacheLosses(1024, LOSSES)
    assert choose_cache(MIXES, room(1e6), found) == "f16"
    assert choose_cache(MIXES, room(3_300), found) == "q4_0"
    # Keys lose more than values here: these give way first.
    keys, values = kv_pair(choose_cache(MIXES, room(7_000), found))
    assert kv_bits(keys) > kv_bits(values)


VOCAB, HIDDEN = 128256, 4096


def test_a_model_of_8_billion_weights_takes_less_than_20_gib(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = make_random_model(tmp_path / "large", SHAPES["llama"])
    sizes = {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": VOCAB}
    config = LlamaConfig(hidden_size=HIDDEN, **sizes)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    end, header = 0, {}
    for name, weight in network.named_parameters():
        begin, end = end, end + weight.numel() * 2
        header[name] = {"dtype": "BF16", "shape": [*weight.shape], "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)  # a hole: nothing is read
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(model)
    source = open_source(str(model))
    assert 8.0e9 < source.parameters < 8.1e9
    recipes = (find_recipe("kl0.02"),)
    parts = memory_parts(source, recipes, Options(SourceOptions(str(model)), recipes))
    needed = parts["measuring how much each tensor matters"]
    # The weights, the output in single precision with its squared gradients, and no third copy.
    assert source.bytes + 2 * 4 * VOCAB * HIDDEN < needed < 20 * 2**30
