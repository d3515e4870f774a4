"""What one types into the chat: text, earlier prompts, commands."""

from dataclasses import replace

from textual.widgets import Static

from app.chat.slash import SPECS
from app.chat.store.records import State
from app.tui.app import IngotApp
from app.tui.help import HelpScreen
from app.tui.screens.chats import ChatsScreen
from app.tui.widgets.chat_sidebar import ChatList
from app.tui.widgets.prompt import SlashMenu
from tests.app.tui.bursts import burst
from tests.app.tui.chat_app import add_turn, answered, chatting, text_of
from tests.app.tui.conftest import ask
from tests.support import wait_until


async def test_earlier_prompts_and_drafts(make):
    app = make()
    store = app.services.store
    old = store.new_chat().id
    add_turn(store, old, None, "Older question", "Yes.")
    add_turn(store, old, None, "Newer question", "No.")
    async with chatting(app) as (pilot, screen):
        await pilot.press(*"typed", "up")
        assert screen.prompt.text == "Newer question"
        await pilot.press("up")
        assert screen.prompt.text == "Older question"
        await pilot.press("down", "down")
        assert screen.prompt.text == "typed"
        await screen.open_chat(old)
        assert screen.prompt.text == ""
        await pilot.press(*"other")
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert screen.prompt.text == "typed"
        await screen.open_chat(old)
        assert screen.prompt.text == "other"


async def test_slash_commands_do_it_or_say_what_is_wrong(make):
    app = make()
    async with chatting(app) as (pilot, screen):
        await pilot.press(*"/reg")
        await pilot.pause()
        assert "/regen" in str(screen.menu.visual)
        await pilot.press("tab")
        assert screen.prompt.text == "/regen"
        await ask(pilot, "/settt temperature 1")
        await wait_until(lambda: "did you mean" in str(screen.menu.visual))
        assert screen.prompt.text == "/settt temperature 1"
        assert screen.menu.display
        await ask(pilot, "/set temperature 0.25")
        await wait_until(lambda: screen.session.conversation.chat.sampling == {"temperature": 0.25})
        assert screen.prompt.text == ""
        await ask(pilot, "/set temperature default")
        await wait_until(lambda: screen.session.conversation.chat.sampling == {})
        await ask(pilot, "/set temperature lots")
        await wait_until(lambda: "temperature" in str(screen.menu.visual))
        await ask(pilot, "/think on")
        told = "the chat template cannot turn thinking on"
        await wait_until(lambda: told in [one.message for one in app._notifications])
        await ask(pilot, "/think default")
        await wait_until(lambda: screen.session.conversation.chat.sampling == {})
        await ask(pilot, "/system Be brief.")
        await wait_until(lambda: screen.session.conversation.chat.system == "Be brief.")
        await ask(pilot, "//not a command")
        await answered(screen, 2)
        assert screen.path[0].text == "/not a command"
        app.services.store.new_chat(title="Mills")
        await ask(pilot, "/chats mill")
        await wait_until(lambda: isinstance(app.screen, ChatsScreen))
        found = app.screen.query_one(ChatList)
        await wait_until(lambda: found.chosen and found.chosen.chat.title == "Mills")


async def test_every_command_of_the_menu_can_be_reached_with_the_arrows(make):
    app = make()
    async with chatting(app) as (pilot, screen):
        await pilot.press("/")
        await wait_until(lambda: "1-8 of" in str(screen.menu.visual))
        await pilot.press("up")  # round the end, and back
        assert f"▸ /{SPECS[-1].name}" in str(screen.menu.visual)
        for spec in SPECS[:10]:
            await pilot.press("down")
            assert f"▸ /{spec.name}" in str(screen.menu.visual)
        await pilot.press("ctrl+u", *"/sy", "down", "enter")
        await wait_until(lambda: screen.prompt.text == "/system ")
        # The wheel moves what is offered, and a click takes one.
        await pilot.press("ctrl+u", "/")
        screen.menu.on_mouse_scroll_down()
        await wait_until(lambda: "2-9 of" in str(screen.menu.visual))
        await pilot.pause()
        shown = str(screen.menu.visual).splitlines()
        at = next(at for at, line in enumerate(shown) if line.split()[0] == "/set")
        assert await pilot.click(SlashMenu, offset=(4, at))
        await wait_until(lambda: screen.prompt.text == "/set ")
        await pilot.press("ctrl+u", *"/he", "down", "enter")
        await wait_until(lambda: isinstance(app.screen, HelpScreen))
        assert screen.prompt.text == ""


async def test_keys_are_told_as_they_are_mapped(make):
    services = make().services
    keymap = {"chat.models": "f11", "chat.continue": "alt+g"}
    app = IngotApp(replace(services, config=replace(services.config, keymap=keymap)))
    chat = app.services.store.new_chat().id
    add_turn(app.services.store, chat, None, "How?", "So", state=State.STOPPED)
    async with chatting(app) as (_, screen):
        hints = screen.transcript.welcome.query_one(".hints", Static)
        await wait_until(lambda: "F11" in str(hints.visual))
        assert "ctrl+t" not in str(hints.visual)
        await screen.open_chat(chat)
        assert "alt+g continues" in text_of(screen.transcript.views[-1], "state")


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
