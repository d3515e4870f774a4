"""What was typed and not sent outlives whatever ends the app, in a real terminal."""

import signal
from collections.abc import Callable
from pathlib import Path

from app.chat.store.store import ChatStore
from app.tui.app import IngotApp
from tests.app.tui.chat_app import answered, chatting
from tests.app.tui.terminal import Terminal
from tests.support import wait_until

TYPED = "a long thought that nobody has sent"


def drafts() -> list[str]:
    with ChatStore.open() as store:
        return [draft for chat in store.chats() if (draft := store.draft(chat.id))]


async def test_a_draft_is_there_again(home: Path, gguf_file: Path):
    env = {"INGOT_HOME": str(home)}
    first = Terminal("chat", gguf_file, env=env)
    try:
        first.wait("q8_0")
        first.press(TYPED)
        first.wait("sent")
        await wait_until(lambda: drafts() == [TYPED])  # for who is killed now
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(60)
    finally:
        first.close()
    assert drafts() == [TYPED]
    again = Terminal("chat", "--resume", env=env)
    try:
        again.wait(TYPED)
        again.wait("q8_0")
        again.press("\r")  # it is sent from there, in the chat that was made for it
        again.wait("tok/s")
    finally:
        again.close()
    with ChatStore.open() as store:
        (chat,) = store.chats()
        assert store.messages(chat.id)[0].text == TYPED
        assert store.draft(chat.id) == ""


async def test_a_draft_of_a_new_chat_becomes_that_chat(make: Callable[..., IngotApp]):
    app = make()
    store: ChatStore = app.services.store
    async with chatting(app) as (pilot, screen):
        await pilot.press(*"What is tin?")
        await wait_until(lambda: [store.draft(c.id) for c in store.chats()] == ["What is tin?"])
        (made,) = store.chats()
        await pilot.press("enter")
        await answered(screen, 2)
        assert screen.session.chat_id == made.id
        await wait_until(lambda: store.draft(made.id) == "")
        # Emptied, a new draft leaves nothing behind.
        await pilot.press("ctrl+n", "x")
        await wait_until(lambda: len(store.chats()) == 2)
        await pilot.press("backspace")
        await wait_until(lambda: len(store.chats()) == 1)
        # Opened from the list, a draft without a chat is the draft of that chat.
        await pilot.press(*"half")
        await wait_until(lambda: len(store.chats()) == 2)
        await screen.open_chat(store.chats()[0].id)
        assert screen.prompt.text == "half"
    assert sorted(store.draft(chat.id) for chat in store.chats()) == ["", "half"]
