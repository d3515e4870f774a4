"""What the chat's widgets make of text, without a terminal."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult

from app.chat.figures import StatusFigures
from app.chat.store.records import Message, Role, State
from app.tui.widgets.message_view import Fact, facts_of, fitting, left, state_text
from app.tui.widgets.prompt import PromptHistory
from app.tui.widgets.prompt_box import status_of
from app.tui.widgets.prose import Section, Splitter, settled
from app.tui.widgets.text_lines import TextLines, wrap
from tests.app.tui.chat_app import FIGURES

MARKDOWN = st.text(st.sampled_from("ab `~\n-*1.#"), max_size=80)


@settings(max_examples=60, deadline=None)
@given(MARKDOWN, st.randoms(use_true_random=False))
def test_however_text_is_cut_it_falls_into_the_same_sections(text: str, draw: random.Random):
    def split(pieces: list[str]) -> list[Section]:
        splitter = Splitter()
        for number, piece in enumerate(pieces, 1):
            splitter.feed(piece, last=number == len(pieces))
        return splitter.sections

    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(4))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text])
    assert split(pieces) == whole
    lines = iter("".join(section.text for section in whole).splitlines())
    wanted = next(lines, None)
    for line in text.splitlines():
        if line == wanted:
            wanted = next(lines, None)
        elif line.strip():
            assert line.lstrip().startswith(("```", "~~~")), "nothing else is left out"
    assert wanted is None


def test_fences_are_those_of_commonmark():
    def code(text: str) -> list[str]:
        return [section.text for section in Splitter(text).sections if section.code]

    assert code("```py\na\n```\n") == ["a\n"]
    assert code("~~~\na\n```\nb\n~~~~\nc") == ["a\n```\nb\n"]
    assert code("````\n```\n````") == ["```\n"]
    assert code("``` not `a` fence\n") == []
    assert code("- item\n  ```\n  a\n  ```\n") == []
    assert code("```\nnever closed") == ["never closed"]
    began = time.monotonic()
    assert code("`" * 300_000 + "x`\n") == []
    assert time.monotonic() - began < 5, "a model may write anything"


def test_blocks_settle_when_they_have_ended():
    assert settled("one\n\ntwo") == len("one\n\n")
    assert settled("one\ntwo") == 0
    assert settled("- a\n\n- b") == 0, "a list goes on over blank lines"
    assert settled("- a\n\n  more of a\n\nafter") == len("- a\n\n  more of a\n\n")
    assert settled("one\n\n-") == 0, "it may become an item"
    long = "- item of a list\n" * 400
    assert 0 < settled(long) < len(long), "a long list does not wait for its end"


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab \t漢字é"), max_size=60), st.integers(2, 20), st.booleans())
def test_wrapping_keeps_every_character_within_the_width(line: str, width: int, words: bool):
    rows = wrap(line, width, words=words)
    assert "".join(line[a:b] for a, b in rows) == line
    assert all(cell_len(line[a:b].rstrip()) <= width for a, b in rows)


def test_what_a_terminal_would_obey_is_shown():
    assert TextLines("a\x1b]52;c;AAAA\x07b\x9b1m").lines == ["a␛]52;c;AAAA␇b\\x9b1m"]
    assert TextLines("tab\tand\nline\r\n").lines == ["tab and", "line", ""]


class Lines(App[None]):
    CSS = "TextLines { height: auto; min-height: 3; }"

    def compose(self) -> ComposeResult:
        yield TextLines("one")


async def test_rows_below_a_text_are_blank():
    async with Lines().run_test(size=(9, 4)) as pilot:
        await pilot.pause()
        drawn = pilot.app.screen._compositor.render_strips()
        assert [strip.text.strip() for strip in drawn] == ["one", "", "", ""]


def test_of_the_figures_those_that_matter_least_are_left_out():
    name, speed = Fact("pebble", 4), Fact("42.5 tok/s", 0)
    first, cached = Fact("first token 135 ms", 3), Fact("cached", 5)
    facts = [name, speed, first, cached]
    fits = {60: facts, 46: facts[:3], 39: facts[1:3], 30: [speed], 5: []}
    assert {width: fitting(facts, width) for width in fits} == fits


@pytest.mark.parametrize(
    ("used", "numbers", "filled", "style"),
    [
        (0, "0 of 4,096 · 0%", 0.0, "$text-success"),
        (1130, "1,130 of 4,096 · 28%", 0.28, "$text-success"),
        (3072, "3,072 of 4,096 · 75%", 0.75, "bold $text-warning"),
        (3700, "3,700 of 4,096 · 90%", 0.9, "bold $text-error"),
        (4096, "4,096 of 4,096 · 100%", 1.0, "bold $text-error"),
    ],
)
def test_the_gauge_of_the_context_tells_when_it_gets_full(
    used: int, numbers: str, filled: float, style: str
):
    status = status_of(StatusFigures(used=used, context=4096), 100)
    assert status.plain.startswith("context ")
    assert status.plain.endswith(f" {numbers}")
    full, rest = status.plain.count("━"), status.plain.count("─")
    assert full + rest >= 20
    assert abs(full / (full + rest) - filled) < 0.03
    assert style in {span.style for span in status.spans}
    narrow = status_of(StatusFigures(note="stopping", used=used, context=4096), 80)
    assert narrow.plain.startswith("stopping ─ context")
    assert cell_len(narrow.plain) < 70


def test_nothing_moves_as_the_context_fills():
    gauges = (StatusFigures(used=used, context=32768) for used in range(0, 32769, 97))
    assert len({status_of(figures, 100).cell_length for figures in gauges}) == 1


def test_time_left_is_told_in_whole_seconds():
    assert [left(s) for s in (0.2, 1.0, 2.1, 59.5, 200)] == [
        "less than 1 s",
        "1 s",
        "3 s",
        "60 s",
        "3 min 20 s",
    ]


def figures_text(message: Message) -> str:
    return " · ".join(fact.text for fact in facts_of(message))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State.STOPPED, "ctrl+g"),
        (State.CUT, "ctrl+g"),
        (State.FAILED, "no memory"),
        (State.LOST, "Ingot ended"),
        (State.DONE, ""),
    ],
)
def test_every_state_says_what_one_can_do(state: State, says: str):
    message = Message(1, 1, None, Role.ASSISTANT, "x", state, 0.0, "m", error="no memory")
    message = replace(message, figures=FIGURES)
    assert says in state_text(message)
    assert bool(state_text(message)) is (state is not State.DONE)
    assert "Left out" in state_text(replace(message, dropped=True))
    assert figures_text(message) == (
        "42.5 tok/s · first token 135 ms · prefill 1,250 tok/s (100 tokens) · 248 tokens · stop"
    )


def test_too_few_tokens_have_no_rate_and_one_token_is_no_tokens():
    few = replace(FIGURES, prompt_tokens=101, cached_tokens=100, completion_tokens=1)
    message = Message(1, 1, None, Role.ASSISTANT, "x", State.DONE, 0.0, "m", figures=few)
    assert "prompt 101 tokens, 100 cached · 1 token ·" in figures_text(message)
    assert "prefill" not in figures_text(message)


def test_earlier_prompts_are_walked_through_and_what_was_typed_comes_back():
    history = PromptHistory(["new", "old"])
    assert history.step("typed", older=True) == "new"
    assert history.step("new", older=True) == "old"
    assert history.step("old", older=True) is None
    assert history.step("old", older=False) == "new"
    assert history.step("new", older=False) == "typed"
    assert history.step("typed", older=False) is None
    assert history.step("typed", older=True) == "new"
    assert history.step("new, changed", older=True) == "new", "a changed one counts as typed"
