"""Keys of the whole app that come in one burst act in the order in which they came."""

from tests.app.tui.bursts import burst
from tests.app.tui.chat_app import add_turn, chatting
from tests.support import wait_until


async def test_what_was_sent_before_another_chat_is_said_in_the_old_one(make):
    app = make()
    store = app.services.store
    chat = store.new_chat().id
    add_turn(store, chat, None, "How?", "So.")
    async with chatting(app, chat) as (pilot, screen):
        await burst(pilot, *"And?", "enter", "ctrl+n", *"new")
        assert screen.prompt.text == "new"
        said = ["How?", "So.", "And?"]
        await wait_until(lambda: [m.text for m in store.messages(chat)][:3] == said)
        await wait_until(lambda: not screen.busy)


async def test_letters_after_esc_are_not_in_what_it_leaves(make):
    app = make()
    chat = app.services.store.new_chat().id
    add_turn(app.services.store, chat, None, "How?", "So.")
    async with chatting(app, chat) as (pilot, screen):
        await burst(pilot, *"draft", "alt+e", *"ever", "escape", *"s")
        assert screen.session.editing is None
        assert screen.prompt.text == "drafts"
