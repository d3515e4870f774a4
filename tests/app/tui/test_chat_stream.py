"""Streaming into the transcript: nothing is lost, the end is followed, long chats stay small."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Static
from textual.widgets.markdown import MarkdownBlock

from app.chat.store import Store
from app.config.settings import Config
from app.monitor.monitor import Monitor
from app.tui.app import IngotApp
from app.tui.measure import RecordedHost, differs, tokens
from app.tui.screens import chat_answer
from app.tui.screens.chat import ChatScreen
from app.tui.screens.chat_answer import Pace
from app.tui.services import Services, Start
from app.tui.widgets import message_view
from app.tui.widgets.frame import AppFooter
from app.tui.widgets.markdown import AnswerMarkdown
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prose import Prose
from app.tui.widgets.transcript import Transcript
from tests.app.chat.store.long_chats import fill
from tests.app.tui.chat_app import ANSWER, answered, shown
from tests.app.tui.held import GatedEngine
from tests.support import wait_until


@pytest.fixture
def animations() -> str:
    """As users have them: how one scrolls is looked at here."""
    return "full"


@pytest.fixture(autouse=True)
def pictures_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between two pictures of an answer."""
    if "home" in request.fixturenames:
        for bound in ("_MOST_OFTEN_S", "_LEAST_OFTEN_S"):
            monkeypatch.setattr(chat_answer, bound, 0.01)


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


def recorded(home: Any, pieces: list[str]) -> tuple[IngotApp, GatedEngine]:
    engine = GatedEngine(pieces)
    host = RecordedHost(engine)
    store = Store.open()
    return IngotApp(Services(Config(), store, host, Monitor(host), Start("recorded"))), engine


async def feed(screen: ChatScreen, engine: GatedEngine, until: int) -> None:
    """Let pieces come, a few at a time, each after the screen has taken those before it."""
    while engine.may < until:
        engine.may = min(engine.may + 100, until)
        await wait_until(
            lambda: (
                len(engine.given) == engine.may
                and (screen.turn is None or screen.turn.meter.tokens == engine.may)
            )
        )


@pytest.mark.parametrize("kind", ["code", "prose", "list"])
async def test_what_was_fed_is_what_is_shown(home: Any, kind: str):
    app, engine = recorded(home, tokens(kind, 1500))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await screen.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 1500)
        await answered(screen, 2)
        await pilot.pause()
        given = "".join(engine.given)
        assert len(engine.given) == 1500
        assert screen.path[-1].text == given
        view = screen.transcript.view_of(screen.path[-1].id)
        assert view is not None
        assert differs(view, given) == 0
        assert screen.transcript.following
        await wait_until(lambda: at_end(screen.transcript))


@pytest.mark.parametrize(("cost_s", "interval_s"), [(0.001, 0.125), (0.006, 0.2), (0.05, 0.33)])
def test_showing_takes_a_small_share_of_a_core(cost_s: float, interval_s: float):
    used = itertools.count(0.0, cost_s)
    pace = Pace(lambda: next(used))
    for _ in range(30):
        pace.showing()
    assert pace.interval == pytest.approx(interval_s, abs=0.001)


async def test_the_first_piece_and_the_end_wait_for_no_picture(
    home: Any, monkeypatch: pytest.MonkeyPatch
):
    for bound in ("_MOST_OFTEN_S", "_LEAST_OFTEN_S"):
        monkeypatch.setattr(chat_answer, bound, 3600.0)
    app, engine = recorded(home, ["One, ", "two, ", "three."])
    async with app.run_test() as pilot:
        screen = await shown(app)
        await screen.send("Go")
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
    home: Any, monkeypatch: pytest.MonkeyPatch
):
    asked, composed = Counter[tuple[str, bool]](), list[Any]()
    refresh, recompose = Widget.refresh, AppFooter.recompose

    def refreshed(self: Widget, *regions: Region, **options: bool) -> Widget:
        asked[type(self).__name__, options.get("layout", False)] += 1
        return refresh(self, *regions, **options)

    async def composing(self: AppFooter) -> None:
        composed.append(self._shown)
        await recompose(self)

    app, engine = recorded(home, ["word "] * 900)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await screen.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 100)
        await pilot.pause()
        monkeypatch.setattr(Widget, "refresh", refreshed)
        monkeypatch.setattr(AppFooter, "recompose", composing)
        for count in range(200, 900, 100):
            await feed(screen, engine, count)
            screen.refresh_bindings()
        await pilot.pause()
        assert asked["Tail", True]
        for parent in ("MessageView", "AnswerBody", "Prose", "AnswerMarkdown"):
            assert not asked[parent, True]
        assert not asked["ChatScreen", False]
        assert all(before != after for before, after in pairwise(composed))
        engine.may = 900
        await answered(screen, 2)


def at_end(transcript: Transcript) -> bool:
    return 0 < transcript.max_scroll_y == transcript.scroll_offset.y


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


@pytest.mark.parametrize("size", [1, 40])
async def test_streamed_blocks_are_those_of_the_whole_text(size: int):
    text = PROSE + "\n\n" + PROSE[:120]
    app = Both(text)
    draw = random.Random(size)
    async with app.run_test() as pilot:
        at = 0
        while at < len(text):
            step = draw.randrange(1, size + 1)
            await app.streamed.grow(text[at : at + step])
            at += step
        await app.streamed.end()
        await pilot.pause()
        assert app.streamed.text == text
        assert blocks(app.streamed) == blocks(app.whole)
        assert not app.streamed.tail_text
        await app.streamed.grow(" that goes on")
        assert app.streamed.tail_text == " that goes on"


async def test_a_block_that_has_ended_is_laid_out_once(home: Any, monkeypatch: pytest.MonkeyPatch):
    asked = Counter[str]()
    take = ChatScreen._on_layout

    async def taken(self: ChatScreen, message: Any) -> None:
        asked[type(message.widget).__name__] += 1
        await take(self, message)

    app, engine = recorded(home, ["Some words of a paragraph.\n\n"] * 12 + ["The end"])
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await screen.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 2)
        view: Any = screen.transcript.view_of(screen.path[-1].id)
        await wait_until(lambda: len(blocks(view)) == 1)
        await pilot.pause()
        monkeypatch.setattr(ChatScreen, "_on_layout", taken)
        for count in range(3, 13):
            await feed(screen, engine, count)
            await wait_until(lambda count=count: len(blocks(view)) == count - 1)
            await pilot.pause()
        found = asked.copy()
        engine.may = 13
        await answered(screen, 2)
        assert found["AnswerMarkdown"]
        assert not found["MarkdownParagraph"]


async def test_scrolling_up_stops_following_and_end_follows_again(home: Any):
    app, engine = recorded(home, tokens("code", 4000))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(app)
        await screen.send("Go")
        transcript = screen.transcript
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 2000)
        await wait_until(lambda: transcript.max_scroll_y > 60)
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        assert not transcript.following
        stays = transcript.scroll_offset.y
        grown = transcript.max_scroll_y
        await feed(screen, engine, 3000)
        await wait_until(lambda: transcript.max_scroll_y > grown + 20)
        assert transcript.scroll_offset.y == stays
        await pilot.press("ctrl+end")
        await wait_until(lambda: transcript.following)
        await pilot.press("escape")
        await wait_until(lambda: not screen.busy)
        await wait_until(lambda: at_end(transcript))


async def test_the_title_tells_the_question_while_that_is_scrolled_away(home: Any):
    app, engine = recorded(home, ["word\n\n"] * 60)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(app)
        await screen.send("A question\nof two lines")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 2)
        await pilot.pause()
        await wait_until(lambda: screen.bar.display and not screen.bar.text)
        await feed(screen, engine, 60)
        await answered(screen, 2)
        await wait_until(lambda: screen.bar.text == "A question")
        await pilot.press("ctrl+up", "home")
        await wait_until(lambda: not screen.bar.text)
        await pilot.press("ctrl+end")
        await wait_until(lambda: screen.bar.text == "A question")
        screen.session.shown.rename("Rivers")
        screen.show_title()
        await pilot.press("ctrl+up", "home")
        await wait_until(lambda: screen.transcript.scroll_offset.y == 0)
        await pilot.pause()
        assert screen.bar.text == "Rivers"


async def test_of_a_thousand_messages_few_are_mounted_and_reading_stays_in_place(home: Any):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 1000).id
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await screen.open_chat(chat)
        await pilot.pause()
        transcript = screen.transcript
        assert len(transcript.entries) == 1000
        assert len(transcript.views) < 60
        assert transcript.views[-1].message.id == screen.path[-1].id
        await wait_until(lambda: transcript.max_scroll_y > 20)
        for _ in range(15):
            transcript.scroll_relative(y=-25, animate=False)
            await pilot.pause()
            top = [v for v in transcript.views if v.region.overlaps(transcript.region)]
            assert top, "there is something to read at every moment"
            assert len(transcript.views) < 60
        assert transcript.views[0].message.id < screen.path[-30].id
        # Whatever is mounted above: the message at the top edge stays where it is.
        await wait_until(lambda: not transcript._moving)
        await pilot.pause()
        view = next(v for v in transcript.views if v.region.overlaps(transcript.region))
        before = view.region.y
        transcript._hold()
        await transcript._more(-1)
        await pilot.pause()
        assert view.region.y == before
        transcript.focus()
        await pilot.press("home")
        await wait_until(lambda: transcript.views[0].message.id == screen.path[0].id)
        await wait_until(lambda: transcript.scroll_offset.y == 0)
        await pilot.press("end")
        await wait_until(lambda: transcript.views[-1].message.id == screen.path[-1].id)
        assert transcript.following


def in_view(view: MessageView, transcript: Transcript) -> bool:
    """Whether all of a message can be read, or as much of its beginning as there is room for."""
    top, window = view.region.y, transcript.region
    tall = view.size.height > window.height
    return bool(view.size) and (window.contains_region(view.region) or (tall and top == window.y))


async def test_a_found_message_is_shown_where_it_stands(home: Any):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 400).id
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        transcript = screen.transcript
        wanted = app.services.store.messages(chat)[100]
        await screen.open_chat(chat, wanted.id)
        view = transcript.view_of(wanted.id)
        assert view is not None
        await wait_until(lambda: in_view(view, transcript))
        await wait_until(lambda: transcript.selected is view)
        # More is mounted above and below, and the message at the top edge gets higher.
        await transcript._more(-1)
        await transcript._more(1)
        await pilot.pause()
        assert in_view(view, transcript)
        row = view.region.y
        above = next(v for v in transcript.views if v.region.overlaps(transcript.region))
        assert above is not view
        await above.mount(*(Static("one row") for _ in range(100)))
        await wait_until(lambda: above.size.height > 100)
        await pilot.pause()
        assert in_view(view, transcript)
        assert view.region.y == row
        # Until one scrolls.
        await pilot.press("pageup")
        await wait_until(lambda: not in_view(view, transcript))


async def test_a_message_is_found_before_anything_has_been_laid_out(home: Any):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 40).id
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        transcript = screen.transcript
        messages = app.services.store.messages(chat)
        for index in (0, 20, 39):
            # As on a busy machine: the layout comes late, the rest of the chat before it.
            layout, screen._refresh_layout = screen._refresh_layout, lambda *_args, **_kw: None
            await screen.open_chat(chat, messages[index].id)
            await transcript._more(-1)
            await asyncio.sleep(0.05)
            screen._refresh_layout = layout
            screen.refresh(layout=True)
            view = transcript.view_of(messages[index].id)
            assert view is not None
            await wait_until(lambda view=view: in_view(view, transcript))
            await wait_until(lambda view=view: transcript.selected is view)
            await pilot.pause()
            assert in_view(view, transcript)


async def test_code_is_highlighted_and_can_be_selected(home: Any):
    app, engine = recorded(home, [ANSWER])
    engine.may = 1
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(app)
        await screen.send("Go")
        await wait_until(lambda: len(screen.path) == 2 and not screen.busy)
        await pilot.pause()
        view = screen.transcript.view_of(screen.path[-1].id)
        assert view is not None
        block = view.body.code_blocks[0]
        assert block.language == "python"
        assert block.text == "def row(boat, strokes):\n    return boat.speed * strokes  # metres\n"
        await wait_until(lambda: block.line_content(0).spans)
        screen.text_select_all()
        assert "return boat.speed" in (screen.get_selected_text() or "")


async def test_what_is_far_above_is_laid_out_again_when_one_scrolls_up(home: Any):
    app, engine = recorded(home, tokens("prose", 6000))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(app)
        transcript = screen.transcript
        await screen.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 6000)
        await answered(screen, 2)
        await pilot.pause()
        view: Any = transcript.view_of(screen.path[-1].id)
        blocks = [block for page in view.body.sections[0]._pages for block in page.children]
        height = transcript.virtual_size.height

        def laid_out() -> int:
            return sum(block in screen._compositor for block in blocks)

        def rows() -> list[str]:
            # Without the gauge below them, which counts tokens in a thread.
            strips = screen._compositor.render_strips()[: transcript.region.bottom]
            return [strip.text for strip in strips]

        def folded() -> bool:
            transcript.fold()
            transcript.refresh(layout=True)
            return laid_out() < len(blocks) / 2

        seen = rows()
        await wait_until(folded)  # what nobody sees costs nothing
        await pilot.pause()
        assert rows() == seen
        assert transcript.virtual_size.height == height
        await pilot.press("pageup")
        await wait_until(lambda: laid_out() == len(blocks))
        await pilot.pause()
        assert transcript.virtual_size.height == height


async def test_an_answer_goes_on_behind_another_mode_and_another_chat(home: Any):
    app, engine = recorded(home, tokens("prose", 300))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await screen.send("Go on")
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
        screen.interrupt()
        answer = await answered(screen, 2)
        await wait_until(
            lambda: screen.transcript.view_of(message).body.text.strip() == answer.text.strip()
        )
