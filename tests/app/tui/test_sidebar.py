"""The list of chats beside the chat, from 140 columns on, with a real store and Pebble."""

import time
import tomllib
from collections.abc import Callable

import pytest

from app.chat.listing import by_day
from app.chat.store.store import ChatStore
from app.config.settings import config_path
from app.tui.app import IngotApp
from app.tui.screens.chat import ChatScreen
from app.tui.screens.chats import ChatsScreen
from app.tui.widgets import chat_sidebar
from app.tui.widgets.chat_sidebar import ChatList
from tests.app.tui.chat_app import answered, chatting, shown
from tests.app.tui.conftest import ask
from tests.support import wait_until

WIDE, NARROW = (150, 40), (120, 40)
PAGE = 50
QUESTIONS = ("What is tin?", "Who was Ada Lovelace?", "Is rain wet?")


@pytest.fixture(autouse=True)
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """All chats are of today, also around midnight: what comes after now is of today, too."""
    begun = time.time()
    monkeypatch.setattr("app.tui.widgets.chat_sidebar.by_day", lambda hits, _: by_day(hits, begun))


def add_chats(store: ChatStore, questions: tuple[str, ...] = QUESTIONS) -> None:
    for text in questions:
        chat = store.new_chat(model="pebble")
        store.add_message(chat.id, None, text)


def listed(screen: ChatScreen) -> list[str]:
    return [hit.chat.title for hit in chats(screen)._hits]


def chats(screen: ChatScreen) -> ChatList:
    return screen.sidebar.query_one(ChatList)


def drawn(screen: ChatScreen) -> list[str]:
    """What the list says, line by line."""
    found = chats(screen)
    return [str(option.prompt).strip() for option in found.options]


async def opened(app: IngotApp, count: int) -> ChatScreen:
    screen = await shown(app)
    await wait_until(lambda: len(listed(screen)) == count)
    return screen


async def test_where_there_is_room_keys_and_a_click_open_a_chat(make: Callable[..., IngotApp]):
    app = make()
    async with app.run_test(size=NARROW) as pilot:
        add_chats(app.services.store)
        screen = await shown(app)
        await pilot.pause()
        assert not screen.sidebar.display
        assert listed(screen) == []  # what nobody sees is not read
        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))
        await pilot.press("escape")
        await pilot.resize_terminal(*WIDE)
        await wait_until(lambda: len(listed(screen)) == 3)
        assert screen.sidebar.display
        assert screen.sidebar.region.right <= screen.transcript.region.x
        assert drawn(screen)[0] == "Today"
        await pilot.press("ctrl+o")
        assert chats(screen).has_focus
        await pilot.press("down", "enter")
        await wait_until(lambda: screen.session.chat_id is not None)
        assert [message.text for message in screen.path] == ["Who was Ada Lovelace?"]
        await wait_until(lambda: screen.prompt.has_focus)
        await wait_until(lambda: "▸ Who was Ada Lovelace?" in drawn(screen))
        # Back without another one; pressed in the list, the key opens the one with everything.
        await pilot.press("ctrl+o", "escape")
        await wait_until(lambda: screen.prompt.has_focus)
        await pilot.click(chats(screen), offset=(6, drawn(screen).index("What is tin?")))
        await wait_until(lambda: [m.text for m in screen.path] == ["What is tin?"])
        await wait_until(lambda: screen.prompt.has_focus)
        await pilot.press("ctrl+o", "ctrl+o")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))


async def test_it_follows_what_is_said_and_named(make: Callable[..., IngotApp]):
    app = make()
    add_chats(app.services.store)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(app, 3)
        await ask(pilot, "What is the capital of France?")
        await answered(screen, 2)
        await wait_until(lambda: listed(screen)[0] == "What is the capital of France?")
        assert "▸ What is the capital of Fran…" in drawn(screen)
        screen.session.conversation.rename("Paris")
        screen.show_title()
        await wait_until(lambda: listed(screen)[0] == "Paris")
        await pilot.press("ctrl+n")
        await wait_until(lambda: not any(line.startswith("▸") for line in drawn(screen)))


async def test_it_is_hidden_and_that_is_remembered(make: Callable[..., IngotApp], home):
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text("[chat]\nsidebar = false\n")
    app = make()
    app.read_settings()
    async with chatting(app, size=WIDE) as (pilot, screen):
        assert not screen.sidebar.display
        await ask(pilot, "/sidebar")
        await wait_until(lambda: screen.sidebar.display)
        assert tomllib.loads(config_path().read_text())["chat"]["sidebar"] is True
        await pilot.press("ctrl+o", "alt+o")
        assert not screen.sidebar.display
        assert screen.prompt.has_focus
        assert tomllib.loads(config_path().read_text())["chat"]["sidebar"] is False
        await pilot.press("ctrl+o")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))


async def test_many_chats_are_read_as_one_scrolls(
    make: Callable[..., IngotApp], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chat_sidebar, "_PAGE", PAGE)
    app = make()
    add_chats(app.services.store, tuple(f"Question {n}" for n in range(4 * PAGE)))
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(app, PAGE)
        await pilot.press("ctrl+o", "end")
        await wait_until(lambda: len(listed(screen)) == 3 * PAGE)
        assert chats(screen).chosen is not None
        assert chats(screen).chosen.chat.title == listed(screen)[PAGE - 1]
        await pilot.press("end")
        await wait_until(lambda: len(listed(screen)) == 4 * PAGE)
