"""Streaming text: whatever the token borders, the same text comes out."""

from __future__ import annotations

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
