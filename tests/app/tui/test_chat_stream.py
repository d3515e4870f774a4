"""Streaming into the transcript: nothing is lost, the end is followed, long chats stay small."""

import itertools
import random
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets.markdown import MarkdownBlock

from app.tui.measure import differs, tokens
from app.tui.screens import chat_frame
from app.tui.screens.chat import ChatScreen
from app.tui.screens.chat_frame import ShowingPace
from app.tui.widgets import message_view
from app.tui.widgets.frame import AppFooter
from app.tui.widgets.markdown import AnswerMarkdown
from app.tui.widgets.prose import CodeBlock, Prose
from tests.app.tui.chat_app import ANSWER, answered, at_end, chatting
from tests.app.tui.held import feed, recorded
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("pictures_at_once")


@pytest.fixture
def animations() -> str:
    """As users have them: how one scrolls is looked at here."""
    return "full"


PROSE = """# A heading

A paragraph with **bold** words
over two lines.

- a list
- of items
  - one below

1. numbered

2. loosely

> a quotation

| a | b |
|---|---|
| 1 | 2 |

    indented code

The end, without a line end"""


@pytest.mark.parametrize("kind", ["code", "list"])
async def test_what_was_fed_is_what_is_shown(home, kind: str):
    app, engine = recorded(home, tokens(kind, 300))
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 300)
        await answered(screen, 2)
        await pilot.pause()
        given = "".join(engine.given)
        assert len(engine.given) == 300
        assert screen.path[-1].text == given
        view = screen.transcript.view_of(screen.path[-1].id)
        assert view is not None
        assert differs(view, given) == 0
        assert screen.transcript.following
        await wait_until(lambda: at_end(screen.transcript))


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.001, 0.125), (0.006, 0.2), (0.05, 0.33)])
def test_showing_takes_a_small_share_of_a_core(
    cost_s: float, interval_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time, "thread_time", itertools.count(0.0, cost_s).__next__)
    pace = ShowingPace()
    for _ in range(30):
        pace.showing()
    assert pace.interval == pytest.approx(interval_s, abs=0.001)


async def test_the_first_piece_and_the_end_wait_for_no_picture(
    home, monkeypatch: pytest.MonkeyPatch
):
    for bound in ("_MOST_OFTEN_S", "_LEAST_OFTEN_S"):
        monkeypatch.setattr(chat_frame, bound, 3600.0)
    app, engine = recorded(home, ["One, ", "two, ", "three."])
    async with chatting(app, size=(80, 24)) as (pilot, screen):
        await screen.answer.send("Go")
        await wait_until(lambda: screen.turn is not None)
        engine.may = 1
        await wait_until(lambda: texts(screen)[-1] == "One, ")
        engine.may = 3
        await answered(screen, 2)
        await pilot.pause()
        assert texts(screen)[-1] == "One, two, three."


def texts(screen: ChatScreen) -> list[str]:
    """Of the messages that are shown."""
    return [view.body.text for view in screen.transcript.views]


async def test_while_an_answer_grows_only_what_changes_is_drawn(
    home, monkeypatch: pytest.MonkeyPatch
):
    asked, composed = Counter[tuple[str, bool]](), list[Any]()
    refresh, recompose = Widget.refresh, AppFooter.recompose

    def refreshed(self: Widget, *regions: Region, **options: bool) -> Widget:
        asked[type(self).__name__, options.get("layout", False)] += 1
        return refresh(self, *regions, **options)

    async def composing(self: AppFooter) -> None:
        composed.append(self._shown)
        await recompose(self)

    app, engine = recorded(home, ["word "] * 500)
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 100)
        await pilot.pause()
        monkeypatch.setattr(Widget, "refresh", refreshed)
        monkeypatch.setattr(AppFooter, "recompose", composing)
        for count in range(200, 500, 100):
            await feed(screen, engine, count)
            screen.refresh_bindings()
        await pilot.pause()
        assert asked["Tail", True]
        for parent in ("MessageView", "AnswerBody", "Prose", "AnswerMarkdown"):
            assert not asked[parent, True]
        assert not asked["ChatScreen", False]
        assert all(before != after for before, after in pairwise(composed))
        engine.may = 500
        await answered(screen, 2)


class Both(App[None]):
    """The same text, streamed and at once."""

    CSS_PATH = Path(message_view.__file__).with_suffix(".tcss")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.streamed, self.whole = Prose(), AnswerMarkdown(text)

    def compose(self) -> ComposeResult:
        yield self.streamed
        yield self.whole


def blocks(widget: Any) -> list[tuple[str, str]]:
    return [(type(b).__name__, b._content.plain) for b in widget.query(MarkdownBlock)]


async def test_streamed_blocks_are_those_of_the_whole_text():
    text = PROSE + "\n\n" + PROSE[:120]
    app = Both(text)
    draw = random.Random(1)
    async with app.run_test() as pilot:
        at = 0
        while at < len(text):
            step = draw.randrange(1, 20)
            await app.streamed.grow(text[at : at + step])
            at += step
        await app.streamed.end()
        await pilot.pause()
        assert app.streamed.text == text
        assert blocks(app.streamed) == blocks(app.whole)
        assert not app.streamed.tail_text
        await app.streamed.grow(" that goes on")
        assert app.streamed.tail_text == " that goes on"


async def test_code_is_highlighted_and_can_be_selected(home):
    app, engine = recorded(home, [ANSWER])
    engine.may = 1
    async with chatting(app, size=(80, 24)) as (_pilot, screen):
        await screen.answer.send("Go")
        await answered(screen, 2)
        await wait_until(lambda: screen.query(CodeBlock))
        block = screen.query_one(CodeBlock)
        assert block.language == "python"
        assert block.text == "def row(boat, strokes):\n    return boat.speed * strokes  # metres\n"
        await wait_until(lambda: block.line_content(0).spans)
        screen.text_select_all()
        assert "return boat.speed" in (screen.get_selected_text() or "")


async def test_an_answer_goes_on_behind_another_mode_and_another_chat(home):
    app, engine = recorded(home, tokens("prose", 300))
    async with chatting(app) as (pilot, screen):
        await screen.answer.send("Go on")
        await wait_until(lambda: screen.turn is not None)
        message = screen.turn.message.id
        await feed(screen, engine, 100)
        seen = len("".join(engine.given))
        await pilot.press("f6")
        await wait_until(lambda: app.screen is not screen)
        await feed(screen, engine, 200)
        given = "".join(engine.given)
        await wait_until(lambda: app.services.store.message(message).text == given)
        await pilot.press("f2")
        await wait_until(lambda: app.screen is screen)
        view = screen.transcript.view_of(message)
        await wait_until(lambda: len(view.body.text) > seen)
        chat = screen.session.chat_id
        await pilot.press("ctrl+n")
        await wait_until(lambda: not screen.path)
        assert screen.busy
        await screen.open_chat(chat)
        assert screen.answer.writes_here
        await pilot.press("f6", "ctrl+c")  # the chat's answer is stopped from there too
        answer = await answered(screen, 2)
        await pilot.press("f2")
        await wait_until(
            lambda: screen.transcript.view_of(message).body.text.strip() == answer.text.strip()
        )
