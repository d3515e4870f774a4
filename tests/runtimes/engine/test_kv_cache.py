"""Prefixes over slots whose keys and values are the tokens themselves."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.engine.kv_cache import KvCache
from runtimes.engine.prefix_pool import Prefix, PrefixPool, common_prefix
from runtimes.engine.scheduler import Scheduler
from runtimes.engine.sequence import Sequence
from runtimes.errors import RequestError
from runtimes.request import Request, SamplingParams
from tests.runtimes.engine.histories import (
    TOKEN_BYTES,
    History,
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


def test_the_pool_keeps_its_budget_and_drops_the_least_recently_used():
    kv, cache = make(slots=1, pool=70)
    for seed in (1, 2, 3):  # 1 and 2 are pushed out of the slot into the pool
        use(kv, cache, 0, text(seed))
    assert cache.pool.nbytes == 60 * TOKEN_BYTES
    assert use(kv, cache, 0, [*text(1), 7]) == 30  # used: 2 is the oldest now, and 3 comes in
    assert cache.pool.nbytes <= 70 * TOKEN_BYTES
    assert use(kv, cache, 0, text(2)) == 0
    assert use(kv, cache, 0, [*text(1), 8]) == 30


def test_a_sliding_window_is_reused_whole_or_from_a_checkpoint():
    kv, cache = make(slots=1, can_trim=False)
    use(kv, cache, 0, text(1))
    assert use(kv, cache, 0, [*text(1), 7, 8]) == 30
    assert use(kv, cache, 0, [*text(1), 9]) == 0, "the slot had gone on from there"
    assert use(kv, cache, 0, text(1)) == 0, "its last token would have to be cut off"


def words(seed: int, length: int) -> list[int]:
    """Tokens none of which is a control token, as those that end in 0 are here."""
    return [value for value in range(seed * 100, 1000) if value % 10][:length]


COMMON = words(3, 60)
BEGIN, END = 110, 120  # of a message


def message(role: int, content: list[int]) -> list[int]:
    return [BEGIN, role, *content, END, 3]


def read(scheduler: Scheduler, tokens: list[int], **fields) -> tuple[int, list[int]]:
    """How many tokens of a prompt were cached, and how long it was where its steps ended."""
    row = make_sequence(Request(tokens, SamplingParams(max_tokens=1), **fields))
    scheduler.add(row)
    ends = []
    while not row.output:
        step = scheduler.schedule(0.0)
        for planned in step.rows:
            scheduler.kv._kv.held[planned.slot] += planned.tokens
        scheduler.commit(step, [[1] for _ in step.sampled])
        ends.append(row.computed)
    scheduler.remove(row)
    return row.reused, ends


def rewinding(
    pool: int = 1000, batch: int = 512, spare: int | None = None
) -> tuple[TokenSlots, Scheduler]:
    shape = Shape(1, batch, mixed=False, can_trim=False, pool_tokens=pool)
    kv = TokenSlots(1, can_trim=False, spare=spare)
    return kv, Scheduler(make_cache(kv, shape), shape.settings)


def test_where_a_prompt_parts_from_an_earlier_one_the_next_goes_on():
    kv, scheduler = rewinding()
    assert read(scheduler, COMMON + words(1, 40), followed=False) == (0, [100])
    assert read(scheduler, COMMON + words(2, 40), followed=False) == (0, [60, 100])
    assert read(scheduler, COMMON + words(4, 40), followed=False) == (60, [100])
    other = read(scheduler, COMMON + words(5, 40), followed=False, adapter="a")
    assert other == (0, [100]), "other keys and values"
    assert kv.rewinds == 1
    assert read(scheduler, COMMON + words(6, 40), followed=False) == (60, [100]), "from the pool"
    assert kv.rewinds == 2


def test_a_checkpoint_serves_though_what_it_replaces_takes_its_room():
    _, scheduler = rewinding(pool=100)
    for tail in (1, 2):
        read(scheduler, COMMON + words(tail, 40), followed=False)
    assert len(scheduler.kv.pool.entries) == 1, "the checkpoint; the slot has the text"
    assert read(scheduler, COMMON + words(4, 40), followed=False)[0] == 60
    assert [entry.whole for entry in scheduler.kv.pool.entries] == [True]


def test_what_goes_on_longer_does_not_serve_from_an_earlier_checkpoint():
    kv, cache = make(slots=2, can_trim=False)
    kv.held[0], kv.held[1] = COMMON + words(1, 20), COMMON + words(1, 20) + words(2, 20)
    cache.pool.put(Prefix(None, COMMON), b"0" * 8, whole=False)
    cache._retained |= {slot: Prefix(None, kv.held[slot]) for slot in (0, 1)}
    found = cache._find(Prefix(None, kv.held[1][:90] + words(4, 20)), {})
    assert (found.length, found.slot) == (80, 0), "not the 60 that the other has"


def test_a_checkpoint_that_is_taken_again_takes_no_more_room():
    pool = PrefixPool(100, can_trim=False)
    for data in (b"a" * 30, b"b" * 30):
        pool.put(Prefix(None, COMMON), data, whole=False)
    pool.put(Prefix(None, COMMON), b"c" * 40)
    assert pool.nbytes == 70
    assert pool.checkpoints(Prefix(None, [*COMMON, 1]))[60].data == b"b" * 30


def test_a_conversation_goes_on_from_where_its_answer_began():
    """Though what the model thought there is left out, and however little was asked."""
    _, scheduler = rewinding()
    asked = message(1, COMMON) + message(2, words(4, 50))
    assert read(scheduler, [*asked, BEGIN, 4]) == (0, [64, 119, 120])
    thought = [*asked, BEGIN, 4, *words(8, 50)]
    assert read(scheduler, thought, followed=False) == (120, [170])
    again = asked + message(4, words(5, 9)) + message(2, words(6, 3))
    size = len(again) + 2
    assert read(scheduler, [*again, BEGIN, 4]) == (119, [size - 1, size])
    assert read(scheduler, [*again, BEGIN, 4]) == (size - 1, [size]), "asked again"
    third = again + message(4, words(7, 2)) + message(2, words(6, 2))
    assert read(scheduler, [*third, BEGIN, 4])[0] == size, "all that the slot holds"
    other = message(1, COMMON) + message(2, words(7, 50))
    assert read(scheduler, [*other, BEGIN, 4])[0] == 64, "another question behind the same system"


@pytest.mark.parametrize("spare", [None, 25])
@pytest.mark.parametrize("keeps", [True, False])
def test_ten_turns_read_what_is_new_and_a_token(keeps: bool, spare: int | None):
    """Whether the template keeps what was thought, or has begun a thought that it drops; also where
    the answer's text is not cut into tokens as it was sampled."""
    _, scheduler = rewinding(pool=5000, spare=spare)
    history, before, extra = message(1, COMMON), list[int](), 0
    for turn in range(10):
        history += message(2, words(4 + turn % 3, 3 + 4 * turn % 20))
        prompt = [*history, BEGIN, 4]
        row = make_sequence(Request(prompt, SamplingParams(max_tokens=30)))
        scheduler.add(row)
        while len(row.output) < 30:
            step = scheduler.schedule(0.0)
            for planned in step.rows:
                scheduler.kv._kv.held[planned.slot] += planned.tokens
            scheduler.commit(step, [[300 + turn + len(row.output) % 7] for _ in step.sampled])
        scheduler.remove(row)
        extra += common_prefix(before, prompt) - row.reused
        before = [*prompt, *row.output[:-1]]
        answer = [*row.output[:20], 9] if keeps and turn % 2 else row.output if keeps else [8, 9]
        history += [BEGIN, 4, *answer, END, 3]
    reread = 0 if spare and keeps else 5 * 21 if keeps else 9
    assert extra <= reread


def test_a_window_loses_a_tail_while_its_cells_are_there():
    kv, scheduler = rewinding(spare=40)
    prompt = [*COMMON, *words(1, 40)]
    read(scheduler, prompt, followed=False)
    assert read(scheduler, [*prompt[:80], *words(2, 20)], followed=False)[0] == 80
    assert kv.trims == 1
    kv.held[0] += words(4, 30)
    scheduler.kv._retained[0] = Prefix(None, [*prompt[:80], *words(2, 20), *words(4, 30)])
    reused = read(scheduler, [*prompt[:80], *words(5, 20)], followed=False)[0]
    assert reused == 0, "the cells before token 90 have been written over"


def test_only_prompts_that_others_may_follow_get_checkpoints_for_them():
    prompt = [*message(1, COMMON), *message(2, COMMON), BEGIN, 4]
    assert read(rewinding()[1], prompt)[1] == [64, 129, 130]
    assert read(rewinding()[1], prompt, followed=False)[1] == [130]
    assert read(rewinding(pool=0)[1], prompt)[1] == [130], "nowhere to keep one"


def test_a_long_prompt_has_checkpoints_on_the_way():
    """A change in its middle costs what comes after; at ends of whole steps."""
    _, scheduler = rewinding(pool=10_000, batch=100)
    prompt = [1 + value % 9 for value in range(3000)]
    _, ends = read(scheduler, prompt)
    assert ends == [*range(100, 3000, 100), 2999, 3000], "one step is cut, before the answer"
    assert read(scheduler, [*prompt[:2500], 99, *prompt[2501:]])[0] == 2200


def test_rows_that_begin_alike_wait_for_the_one_that_reads_it():
    history = History(Shape(3, 512, mixed=False, can_trim=False, pool_tokens=1000))
    rows = [history.add(COMMON + words(n, 40), 3, followed=False) for n in (1, 2, 4)]
    history.run_out()
    assert [row.reused for row in rows] == [0, 60, 60]
    assert history.kv.rewinds == 2


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


def test_a_change_before_what_is_as_before_is_told_in_words(caplog):
    """A timestamp in the system prompt, say."""
    kv, cache = make(slots=1, pool=2000)
    before, behind = words(1, 40), [1 + value * value % 797 for value in range(300)]
    with caplog.at_level(logging.INFO, logger="runtimes.engine"):
        use(kv, cache, 0, [*before, 501, 502, *behind])
        use(kv, cache, 0, [*before, 601, *behind[::-1]])
        assert not caplog.records, "what follows is another text"
        use(kv, cache, 0, [*before, 701, 702, 703, *behind])
    (record,) = caplog.records
    assert "272 tokens are computed again" in record.getMessage()
    assert "(token 40 of 343)" in record.getMessage()
