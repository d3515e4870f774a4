"""The types of keys and values that are chosen with those of the weights."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from quantize.allocate.caches import choose_cache
from quantize.allocate.solve import TypeChoice
from quantize.quality.fidelity import CacheLosses
from runtimes.settings import kv_bits, kv_pair

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
