"""Streaming text: whatever the token borders, the same text comes out."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from runtimes.engine.detokenize import Detokenizer


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(borders)]


@given(st.text(), st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cut_of_the_bytes_gives_the_text(text, cuts):
    out = Detokenizer()
    streamed = [out.feed(piece) for piece in pieces(text.encode(), cuts)]
    assert "\ufffd" not in "".join(streamed) or "\ufffd" in text
    assert "".join(streamed) + out.finish() == text
    assert out.text == text


@given(
    st.text(alphabet="abc", max_size=40),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 100), max_size=20),
)
def test_nothing_of_a_stop_string_is_ever_shown(text, stops, cuts):
    out = Detokenizer(tuple(stops))
    shown = ""
    for piece in pieces(text.encode(), cuts):
        shown += out.feed(piece)
        if out.stopped:
            break
    shown += out.finish()
    at = [text.find(stop) for stop in stops if stop in text]
    if not at:
        assert shown == text
        assert not out.stopped
    else:
        # Tokens come one by one, so the stop that is complete first ends the text.
        assert out.stopped
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)


def test_a_broken_character_becomes_one_replacement_at_the_end():
    out = Detokenizer()
    assert out.feed("é".encode()[:1]) == ""
    assert out.finish() == "\ufffd"


@given(
    st.lists(st.text(alphabet="ab", max_size=6), max_size=8),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4),
    st.lists(st.booleans(), max_size=8),
)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(texts, stops, may):
    out = Detokenizer(tuple(stops))
    held = ""
    for text, counts in zip(texts, may, strict=False):
        held += text
        shown = out.feed(text.encode(), may_stop=counts)
        if out.stopped:
            return
        tails = (held[-n:] for n in range(len(held), 0, -1)) if counts else ()
        kept = next((t for t in tails if any(s.startswith(t) and s != t for s in stops)), "")
        assert shown == held.removesuffix(kept) if kept else shown == held
        held = kept


def test_long_stop_strings_cost_no_more_than_their_length():
    """Every token once compared all that was held with every beginning of every stop string."""
    stops = ["a" * 8000 + chr(200 + n) for n in range(32)]
    stops += ["a" * 4000 + chr(200 + n) + "a" * 4000 for n in range(31)]
    out = Detokenizer(tuple(stops))
    begun = time.monotonic()
    for _ in range(8000):
        assert out.feed(b"a") == ""
    assert time.monotonic() - begun < 60
    assert out.finish() == "a" * 8000
