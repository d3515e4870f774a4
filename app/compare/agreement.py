"""Where two greedy answers part, and how much of them is equal."""

from collections.abc import Hashable, Sequence
from functools import lru_cache

from app.compare.records import Agreement, Parting, Side


def agreement(first: Side, other: Side) -> Agreement | None:
    """``other`` against ``first``; None while one of them has nothing.

    Token by token where both use the same vocabulary, else character by character. An answer that
    was cut (by its length limit or by the user) says nothing of what would have followed: it agrees
    with a longer one that begins with it.
    """
    if not first.probe or not other.probe:
        return None
    if not (first.token_ids and other.token_ids):
        return None
    tokens = same_vocabulary(first, other)
    mine = first.token_ids if tokens else first.text
    theirs = other.token_ids if tokens else other.text
    same = equal_from_start(mine, theirs)
    ended = first.state.ended and other.state.ended
    # Where one is the beginning of the other, the shorter one must have ended there by itself.
    shorter = first if len(mine) < len(theirs) else other
    parts = same < min(len(mine), len(theirs)) or (len(mine) != len(theirs) and shorter.whole)
    make = _at_token if tokens else _at_character
    return Agreement(
        unit="tokens" if tokens else "characters",
        same=same,
        longest=max(len(mine), len(theirs)),
        common=longest_common(mine, theirs) if ended else None,
        parting=make(first, other, same) if parts else None,
        same_prompt=first.prompt == other.prompt or not tokens,
    )


def same_vocabulary(first: Side, other: Side) -> bool:
    """Whether both turn a text of several scripts into the same ids; a token that one of them puts
    before every text does not count."""
    a, b = first.probe, other.probe
    return a == b or a[1:] == b or a == b[1:]


def equal_from_start(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the common beginning."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@lru_cache(16)
def longest_common(a: tuple[Hashable, ...] | str, b: tuple[Hashable, ...] | str) -> int:
    """The length of the longest common subsequence.

    Bit-parallel (H. Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): one addition of
    numbers of len(a) bits for each item of ``b``.
    """
    places: dict[Hashable, int] = {}
    for i, item in enumerate(a):
        places[item] = places.get(item, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for item in b:
        matches = row & places.get(item, 0)
        row = ((row + matches) | (row - matches)) & everything
    return len(a) - row.bit_count()


def _at_token(first: Side, other: Side, index: int) -> Parting:
    ids = (first.token_ids, other.token_ids)
    pair = [tokens[index] if index < len(tokens) else None for tokens in ids]

    def gap(side: Side) -> float | None:
        best = sorted(side.top.get(index, {}).values(), reverse=True)
        return best[0] - best[1] if len(best) > 1 else None

    def logprobs(side: Side) -> tuple[float | None, ...]:
        top = side.top.get(index, {})
        return tuple(None if token is None else top.get(token) for token in pair)

    return Parting(
        index,
        None if first.ends_at(index) else first.piece(index),
        None if other.ends_at(index) else other.piece(index),
        (first.place(index), other.place(index)),
        (gap(first), gap(other)),
        (logprobs(first), logprobs(other)),
    )


def _at_character(first: Side, other: Side, index: int) -> Parting:
    def word(text: str) -> str | None:
        return text[index : index + 12] if index < len(text) else None

    return Parting(index, word(first.text), word(other.text), (index, index))
