"""Blocks of thinking: found, also while they come, and kept out of prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.thinking import Part, answer_of, opening, split

A, T = False, True


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ()),
        ("plain", (Part(A, "plain"),)),
        ("<think>\nhm\n</think>\n\nyes", (Part(T, "hm"), Part(A, "yes"))),
        ("  <reasoning>a\n\nb</reasoning>", (Part(T, "a\n\nb"),)),
        ("<think>hm", (Part(T, "hm", True),)),
        ("hm\n</think>\nyes", (Part(T, "hm"), Part(A, "yes"))),  # opened by the template
        ("one\n<think>a</think>\ntwo", (Part(A, "one"), Part(T, "a"), Part(A, "two"))),
        ("say <think> in a line", (Part(A, "say <think> in a line"),)),
        ("```\n<think>\n```\nx", (Part(A, "```\n<think>\n```\nx"),)),
        ("~~~~ x\n```\n<think>\n~~~~", (Part(A, "~~~~ x\n```\n<think>\n~~~~"),)),
        ("<think>\n```\ncode\n</think>\nyes", (Part(T, "```\ncode"), Part(A, "yes"))),
        ("<think>a</think>\nuse </think> so", (Part(T, "a"), Part(A, "use </think> so"))),
        ("<thinker>x</thinker>", (Part(A, "<thinker>x</thinker>"),)),
    ],
)  # fmt: skip
def test_parts(text: str, parts: tuple[Part, ...]):
    assert split(text) == parts


def test_a_tag_in_two_pieces_is_not_shown():
    whole = "<think>\nhm\n</think>\n\nyes < no <b"
    shown: list[str] = []
    for end in range(len(whole) + 1):
        shown = [part.text for part in split(whole[:end], final=False)]
        assert not any("<t" in text or "</" in text for text in shown)
    assert shown == ["hm", "yes < no <b"]
    assert split("a <th", final=False) == (Part(A, "a "),)
    assert split("a <th") == (Part(A, "a <th"),)


pieces = st.sampled_from(["<think>", "</think>", "```", "~~~", "\n", "a", "<"])


@given(st.lists(pieces).map("".join))
def test_any_text(text: str):
    """Nothing is lost but tags and blank lines, and what was sent is stable."""
    parts = split(text)
    kept = "".join(part.text for part in parts)
    for part in parts:
        assert part.text in text
        assert not part.open or part is parts[-1]
    assert kept.count("a") == text.count("a")
    answer = answer_of(text)
    assert "a" not in text or answer in text or all(p in text for p in answer.split("\n\n"))


def test_what_the_template_opens():
    messages = [{"role": "user", "content": "hi"}]
    body = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert (
        opening(body + "{% if add_generation_prompt %}<think>\n{% endif %}", messages)
        == "<think>\n"
    )
    assert opening(body + "<think>\n\n</think>\n\n", messages) == ""
    assert opening(body, [{"role": "user", "content": "<think>"}]) == ""
    assert opening("{{ raise_exception('no') }}<think>", messages) == ""
    assert opening(None, messages) == ""
