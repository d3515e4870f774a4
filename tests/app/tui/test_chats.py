"""The list of chats: search, open, rename, delete and bring back, with a real store."""

import calendar
import time
from dataclasses import replace
from typing import Any

import pytest
from textual.widgets import Input, Static

from app.chat.store.records import Chat, Hit, Role, State
from app.chat.store.store import ChatStore
from app.tui.screens.chats import ChatChoice, ChatsScreen
from app.tui.widgets import chat_sidebar
from app.tui.widgets.chat_sidebar import ChatList, _lines, when
from tests.support import wait_until

QUESTIONS = ("What is tin?", "Who was Ada Lovelace?", "Is rain wet?")


@pytest.fixture
def store(services: Any) -> ChatStore:
    """Three chats; in the middle one Ada's answer speaks of an engine."""
    store: ChatStore = services.store
    for text in QUESTIONS:
        chat = store.new_chat(model="pebble")
        asked = store.add_message(chat.id, None, text)
        if "Ada" in text:
            answer = "She wrote of the Analytical Engine, long before there was one."
            store.end_answer(
                replace(
                    store.begin_answer(chat.id, asked.id),
                    text=answer,
                    token_ids=(),
                    state=State.DONE,
                )
            )
    return store


def listed(screen: ChatsScreen) -> list[str]:
    return [hit.chat.title for hit in screen.query_one(ChatList)._hits]


def notes(app: Any) -> list[str]:
    return [note.message for note in app._notifications]


async def opened(pilot: Any, store: ChatStore, current: int | None = None) -> ChatsScreen:
    screen = ChatsScreen(store, current)
    pilot.app.show(screen)
    await wait_until(lambda: screen.query(ChatList) and screen.query_one(".box").border_title)
    await pilot.pause()
    return screen


def marked(screen: ChatsScreen) -> str:
    """What the search has found in the messages of the list."""
    hits = screen.query_one(ChatList)._hits
    return " ".join(h.snippet[start:end].lower() for h in hits for start, end in h.marks)


async def test_a_search_in_all_chats_opens_at_the_message(bare, store: ChatStore):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, store)
        await pilot.press(*"analytical", "space", *"engi")
        # The list may be the same for less than has been typed.
        await wait_until(lambda: marked(screen).startswith("analytical engi"))
        assert listed(screen) == ["Who was Ada Lovelace?"]
        (hit,) = screen.query_one(ChatList)._hits
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    (message,) = [m for m in store.messages(hit.chat.id) if m.role is Role.ASSISTANT]
    assert bare.ended_with == ChatChoice(hit.chat, message.id)


async def test_a_search_for_nothing_says_so_and_esc_empties_it(bare, store: ChatStore):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, store)
        await pilot.press(*"zebra")
        said = screen.query_one("#said", Static)
        await wait_until(lambda: "No chat has all these words" in str(said.content))
        await pilot.press("enter")  # there is nothing to open
        await pilot.pause()
        assert bare.screen is screen
        await pilot.press("escape")
        await wait_until(lambda: len(listed(screen)) == 3)
        await pilot.press("escape")
        await wait_until(lambda: bare.screen is not screen)
    assert bare.ended_with is None


async def test_one_is_renamed_deleted_and_back_by_key(bare, store: ChatStore):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, store)
        assert listed(screen) == list(reversed(QUESTIONS))
        await pilot.press("down", "ctrl+l", "end", *" II", "enter")
        await wait_until(lambda: listed(screen)[1] == "Who was Ada Lovelace? II")
        await pilot.press("delete")
        await wait_until(lambda: len(listed(screen)) == 2)
        assert "Deleted: Who was Ada Lovelace? II. ctrl+z brings it back." in notes(bare)
        await pilot.press("ctrl+z")
        await wait_until(lambda: len(listed(screen)) == 3)
        await pilot.press("ctrl+n")
        await wait_until(lambda: bare.ended_with == ChatChoice(None))


async def test_deleted_chats_are_listed_and_come_back(bare, store: ChatStore):
    store.delete_chat(store.chats()[0].id)  # at another time: ctrl+z knows nothing of it
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, store)
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert len(listed(screen)) == 2
        await pilot.press("f10")
        await wait_until(lambda: listed(screen) == ["Is rain wet?"])
        assert "30 days" in str(screen.query_one("#said", Static).content)
        await pilot.press("ctrl+d")  # it is deleted already
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(lambda: listed(screen) == [])
        await pilot.press("escape")
        await wait_until(lambda: len(listed(screen)) == 3)
        assert bare.screen is screen


async def test_leaving_after_the_open_chat_was_deleted_asks_for_a_new_one(bare, store: ChatStore):
    async with bare.run_test(size=(80, 24)) as pilot:
        screen = await opened(pilot, store, store.chats()[0].id)
        await pilot.press("ctrl+d")
        await wait_until(lambda: len(listed(screen)) == 2)
        await pilot.press("escape")
        await wait_until(lambda: bare.ended_with == ChatChoice(None))


def test_dates():
    now = time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))
    assert when(now - 3600, now) == "11:00"
    assert when(now - 3 * 86400, now) == "01 May"
    assert when(now - 300 * 86400, now).startswith("2025-")


def test_a_match_far_behind_is_in_sight():
    snippet = "x " * 60 + "here it is"
    at = snippet.index("here")
    hit = Hit(Chat(1, "T", 0.0, 0.0), 7, snippet, ((at, at + 4),))
    lines = _lines(hit, 60, 0.0, shown=False)
    second = lines.plain.split("\n")[1]
    assert len(second) <= 60
    assert "here" in second
    (marked,) = [
        lines.plain[span.start : span.end] for span in lines.spans if "underline" in str(span.style)
    ]
    assert marked == "here"


@pytest.mark.usefixtures("utc")
def test_picture(bare, services, snap, monkeypatch: pytest.MonkeyPatch):
    noon = float(calendar.timegm((2025, 5, 4, 12, 0, 0)))
    monkeypatch.setattr(chat_sidebar, "_now", lambda: noon + 400 * 86400)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: noon)
        for number in range(14):
            chat = services.store.new_chat(model="pebble")
            text = f"Question {number}: who was Ada Lovelace, and what did she write about engines?"
            services.store.add_message(chat.id, None, text)

    async def open_it(pilot: Any) -> None:
        screen = ChatsScreen(services.store)
        pilot.app.show(screen)
        await wait_until(lambda: screen.query(ChatList) and len(listed(screen)) == 14)
        screen.query_one(Input).value = "engin"
        await wait_until(lambda: screen.query_one(ChatList)._hits[0].marks)
        await pilot.press("down")

    assert snap(bare, terminal_size=(80, 24), run_before=open_it)
