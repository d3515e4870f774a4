"""Prefixes over slots whose keys and values are the tokens themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.engine.kv_cache import LEAST_SHARED, KvCache
from runtimes.engine.prefix_pool import Prefix, common_prefix
from runtimes.engine.sequence import Sequence
from runtimes.errors import RequestError
from runtimes.request import Request
from tests.runtimes.engine.histories import (
    TOKEN_BYTES,
    Shape,
    TokenSlots,
    make_cache,
    make_sequence,
)

few = st.lists(st.integers(0, 1), max_size=40)


def make(slots: int = 2, pool: int = 100, *, can_trim: bool = True, mixed: bool = False):
    kv = TokenSlots(slots, can_trim)
    return kv, make_cache(kv, Shape(slots, 512, mixed, can_trim, pool))


def begin(
    kv: TokenSlots, cache: KvCache, slot: int, tokens: list[int], adapter: str | None = None
) -> Sequence:
    """A sequence whose tokens are all in ``slot``, which nothing but its own goes into."""
    sequence = make_sequence(Request(tokens, adapter=adapter))
    cache._sequences[slot], sequence.slot = sequence, slot
    assert cache.reuse_prefix(sequence)
    assert kv.held[slot] == tokens[: sequence.computed]
    assert sequence.reused == sequence.computed
    kv.held[slot], sequence.computed = list(tokens), len(tokens)
    return sequence


def use(kv: TokenSlots, cache: KvCache, slot: int, tokens: list[int], **fields) -> int:
    """A sequence from its first step to its end; returns how many tokens were cached."""
    sequence = begin(kv, cache, slot, tokens, **fields)
    cache.release(sequence)
    return sequence.reused


def text(seed: int, length: int = 30) -> list[int]:
    return [seed * 100 + i for i in range(length)]


@given(few, few)
def test_common_prefix(a, b):
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    assert common_prefix(a, b) == same


def test_the_longest_beginning_is_found_wherever_it_is():
    kv, cache = make(slots=2)
    a, b, c = text(1), text(2), text(3)
    assert use(kv, cache, 0, a) == 0
    assert use(kv, cache, 1, b) == 0
    assert use(kv, cache, 0, [*b, 7]) == 30, "copied from the other slot"
    assert use(kv, cache, 0, c) == 0
    assert use(kv, cache, 0, [*a, 7]) == 30, "loaded from the pool"
    assert use(kv, cache, 0, [*a[:20], 9, 9, 9]) == 20, "its own slot, cut back"


def test_one_token_is_always_left_to_compute():
    kv, cache = make()
    use(kv, cache, 0, text(1))
    assert use(kv, cache, 0, text(1)) == 29


def test_little_in_common_is_not_worth_a_copy():
    kv, cache = make()
    use(kv, cache, 0, text(1))
    shared = text(1)[: LEAST_SHARED - 1]
    assert use(kv, cache, 1, [*shared, 5, 5, 5, 5]) == 0


def test_the_pool_keeps_its_budget_and_drops_the_least_recently_used():
    kv, cache = make(slots=1, pool=70)
    for seed in (1, 2, 3):  # 1 and 2 are pushed out of the slot into the pool
        use(kv, cache, 0, text(seed))
    assert cache.pool.nbytes == 60 * TOKEN_BYTES
    assert use(kv, cache, 0, [*text(1), 7]) == 30  # used: 2 is the oldest now, and 3 comes in
    assert cache.pool.nbytes <= 70 * TOKEN_BYTES
    assert use(kv, cache, 0, text(2)) == 0
    assert use(kv, cache, 0, [*text(1), 8]) == 30


def test_a_sliding_window_is_reused_whole_or_not_at_all():
    kv, cache = make(slots=1, can_trim=False)
    use(kv, cache, 0, text(1))
    assert use(kv, cache, 0, [*text(1), 7, 8]) == 30
    assert use(kv, cache, 0, [*text(1), 9]) == 0, "the slot had gone on from there"
    assert use(kv, cache, 0, text(1)) == 0, "its last token would have to be cut off"


def test_a_shared_cache_leaves_nothing_in_free_slots():
    kv, cache = make(slots=2, mixed=True)
    use(kv, cache, 0, text(1))
    assert kv.held == [[], []]
    assert use(kv, cache, 1, [*text(1), 7]) == 30


def test_clear_forgets_slots_and_pool():
    kv, cache = make(slots=1)
    use(kv, cache, 0, text(1))
    use(kv, cache, 0, text(2))
    assert cache.clear() == 30 * TOKEN_BYTES
    assert cache.held_tokens() == cache.pool.nbytes == 0
    assert use(kv, cache, 0, text(2)) == 0


def test_of_another_text_only_what_is_shared_is_given_away():
    kv, cache = make(slots=2)
    use(kv, cache, 0, text(1))
    rows = [begin(kv, cache, slot, text(2 + slot)) for slot in (0, 1)]
    wanted = [*text(1, 20), 7, 7]
    with pytest.raises(RequestError, match="every slot is in use"):
        cache.save_prefix(Prefix(None, wanted))
    assert cache.save_prefix(Prefix(None, [*text(1), 7]))[0] == text(1), "nothing to cut off"
    cache.release(rows[0])
    tokens, data = cache.save_prefix(Prefix(None, wanted))
    assert tokens == wanted[:20]
    assert len(data) == 20 * TOKEN_BYTES
    assert use(kv, cache, 0, [*text(2), 7]) == 30, "what the slot held is not lost"


def test_another_adapter_has_other_keys_and_values():
    kv, cache = make(slots=1)
    use(kv, cache, 0, text(1))
    assert use(kv, cache, 0, [*text(1), 7], adapter="legal") == 0
    assert use(kv, cache, 0, [*text(1), 8], adapter="legal") == 30
    assert use(kv, cache, 0, [*text(1), 9]) == 30, "from the pool: what it was without one"


def test_a_row_runs_where_its_beginning_is_else_in_the_lowest_empty_slot():
    kv, cache = make(slots=3)
    use(kv, cache, 1, text(1))

    def placed(tokens: list[int]) -> Sequence:
        sequence = make_sequence(Request(tokens))
        cache.place(sequence)
        return sequence

    one, other = placed([*text(1), 5]), placed(text(2))
    assert (one.slot, other.slot) == (1, 0)
    for sequence in (one, other):
        cache.release(sequence)
    use(kv, cache, 0, text(3))
    one = begin(kv, cache, 1, text(4))
    assert placed(text(2)).slot == 0, "a hole costs more than what slot 0 keeps"
    cache.release(one)
    assert placed(text(2)).slot == 2
