"""A draft is kept while it is typed, in the chat that was made for it; test_terminal.py kills the
app."""

from collections.abc import Callable

from app.chat.store.store import ChatStore
from app.tui.app import IngotApp
from tests.app.tui.chat_app import answered, chatting
from tests.support import wait_until


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
