"""Lists and commands of the chat with the mouse alone: opened, chosen from, left."""

from typing import Any

from textual.widgets._footer import FooterKey

from app.chat import slash
from app.tui.app import IngotApp
from app.tui.help import HelpScreen
from app.tui.screens.chat import ChatScreen
from app.tui.screens.dialogs import Panel
from app.tui.widgets.message_view import MessageView
from app.tui.widgets.prompt import SlashMenu
from tests.app.tui.chat_app import add_turn
from tests.app.tui.test_dialogs import hint
from tests.support import wait_until


async def test_what_stands_in_the_footer(app: IngotApp):
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: isinstance(app.screen, Panel))
        await hint(pilot, "esc Back")
        await wait_until(lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        one = app.services.store.new_chat().id
        add_turn(app.services.store, one, None, "How?", "So.")
        await chat.open_chat(one)
        await pilot.pause()
        await pilot.click(next(iter(chat.query(MessageView))))
        await wait_until(lambda: any(k.action == "screen.drop" for k in chat.query(FooterKey)))
        for action, there in (
            ("app.help", lambda: isinstance(app.screen, HelpScreen)),
            ("screen.drop", lambda: chat.path[0].dropped),
            ("screen.edit", lambda: chat.session.editing is not None),
        ):
            await pilot.pause()
            key = next(k for k in chat.query(FooterKey) if k.action.endswith(action[4:]))
            assert await pilot.click(key)
            await wait_until(there)
            if app.screen is not chat:
                await hint(pilot, "esc Back")
                await wait_until(lambda: app.screen is chat)


async def test_a_click_on_an_offered_command(app: IngotApp, monkeypatch):
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(lambda: isinstance(app.screen, Panel))
        await hint(pilot, "esc Back")
        await wait_until(lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        actions, did, run = {spec.action for spec in slash.SPECS}, list[str](), app.run_action

        async def noted(action: Any, *more: Any) -> bool:
            if action not in actions:
                return await run(action, *more)
            did.append(action)
            return True

        monkeypatch.setattr(app, "run_action", noted)
        for number, spec in list(enumerate(slash.SPECS))[::9]:
            chat.prompt.fill("/")
            await wait_until(lambda: chat.menu.has_class("-shown"))
            await pilot.pause()
            for _ in range(len(slash.SPECS)):  # up to the top
                chat.menu.on_mouse_scroll_up()
            for _ in range(number):
                chat.menu.on_mouse_scroll_down()
            await pilot.pause()
            line = next(
                at
                for at, one in enumerate(str(chat.menu.visual).splitlines())
                if one.split()[0] == f"/{spec.name}"
            )
            did.clear()
            assert await pilot.click(SlashMenu, offset=(4, line))
            await pilot.pause()
            if spec.arguments:
                assert chat.prompt.text == f"/{spec.name} "
                await pilot.click(next(k for k in chat.query(FooterKey) if k.action == "send"))
            await wait_until(lambda: did)
            assert did == [spec.action]
