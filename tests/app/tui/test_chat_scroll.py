"""Scrolling in the transcript: the end is followed, and what one reads stays in its place."""

import asyncio
from typing import Any

import pytest
from textual.widgets import Static

from app.tui.measure import tokens
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.transcript import Transcript
from tests.app.chat.store.long_chats import fill
from tests.app.tui.chat_app import answered, at_end, chatting
from tests.app.tui.held import feed, recorded
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("pictures_at_once")


@pytest.fixture
def animations() -> str:
    """As users have them: how one scrolls is looked at here."""
    return "full"


async def test_scrolling_up_stops_following_and_end_follows_again(home):
    app, engine = recorded(home, tokens("code", 1800))
    async with chatting(app, size=(80, 24)) as (pilot, screen):
        await screen.answer.send("Go")
        transcript = screen.transcript
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 1000)
        await wait_until(lambda: transcript.max_scroll_y > 60)
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        assert not transcript.following
        stays = transcript.scroll_offset.y
        grown = transcript.max_scroll_y
        await feed(screen, engine, 1600)
        await wait_until(lambda: transcript.max_scroll_y > grown + 20)
        assert transcript.scroll_offset.y == stays
        await pilot.press("ctrl+end")
        await wait_until(lambda: transcript.following)
        await pilot.press("escape")
        await wait_until(lambda: not screen.busy)
        await wait_until(lambda: at_end(transcript))


async def test_the_title_tells_the_question_while_that_is_scrolled_away(home):
    app, engine = recorded(home, ["word\n\n"] * 60)
    async with chatting(app, size=(80, 24)) as (pilot, screen):
        await screen.answer.send("A question\nof two lines")
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


async def test_of_many_messages_few_are_mounted_and_reading_stays_in_place(home):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 120).id
    async with chatting(app, chat) as (pilot, screen):
        await pilot.pause()
        transcript = screen.transcript
        assert len(transcript.entries) == 120
        assert len(transcript.views) < 60
        assert transcript.views[-1].message.id == screen.path[-1].id
        await wait_until(lambda: transcript.max_scroll_y > 20)
        for _ in range(8):
            transcript.scroll_relative(y=-25, animate=False)
            await pilot.pause()
            top = [v for v in transcript.views if v.region.overlaps(transcript.region)]
            assert top, "there is something to read at every moment"
            assert len(transcript.views) < 60
        assert transcript.views[0].message.id < screen.path[-20].id
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


async def test_a_found_message_is_shown_where_it_stands(home):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 120).id
    async with chatting(app) as (pilot, screen):
        transcript = screen.transcript
        wanted = app.services.store.messages(chat)[60]
        await screen.open_chat(chat, wanted.id)
        view = transcript.view_of(wanted.id)
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


async def test_a_message_is_found_before_anything_has_been_laid_out(home):
    app, _ = recorded(home, [])
    chat = fill(app.services.store, 40).id
    async with chatting(app) as (pilot, screen):
        transcript = screen.transcript
        messages = app.services.store.messages(chat)
        for index in (0, 20):
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


async def test_what_is_far_above_is_laid_out_again_when_one_scrolls_up(home):
    app, engine = recorded(home, tokens("prose", 1200))
    async with chatting(app, size=(80, 24)) as (pilot, screen):
        transcript = screen.transcript
        await screen.answer.send("Go")
        await wait_until(lambda: screen.turn is not None)
        await feed(screen, engine, 1200)
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
