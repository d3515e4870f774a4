"""Help and the palette: what they tell, how it is drawn, and that a mouse reaches all of it."""

from typing import Any

from textual.command import CommandInput, CommandList
from textual.widgets import Input
from textual.widgets._footer import FooterKey

from app.tui.app import IngotApp
from app.tui.help import HelpScreen, KeyGroup, Palette, commands, groups
from app.tui.keys import TASKS, declared
from app.tui.screens.find import FindScreen
from tests.app.tui.chat_app import out_of_models
from tests.app.tui.conftest import searched
from tests.support import wait_until


async def _palette(app: IngotApp, pilot: Any, typed: str = "") -> list[str]:
    """Open it by a click on the footer, type, and read its lines."""
    footer = [key for key in app.screen.query(FooterKey) if key.action == "command_palette"]
    await pilot.click(footer[0])
    await wait_until(lambda: isinstance(app.screen, Palette))
    app.screen.query_one(CommandInput).value = typed
    await wait_until(lambda: app.screen.query_one(CommandList).option_count)
    await searched(app)
    await pilot.pause()
    return [str(one.prompt) for one in app.screen.query_one(CommandList).options]


def test_what_is_sorted_by_task_exists_and_is_sorted_once():
    known = {binding.id for _, found in declared() for binding in found}
    named = [id for ids in TASKS.values() for id in ids.split()]
    assert set(named) <= known
    assert len(set(named)) == len(named)


async def test_keys_are_at_the_right_edge_of_the_palette(services):
    app = IngotApp(services)
    async with app.run_test(size=(80, 40)) as pilot:
        await out_of_models(pilot)
        lines = await _palette(app, pilot)
        assert len({len(line) for line in lines}) == 1
        by_key = {line.split()[-1]: line for line in lines}
        assert by_key["ctrl+n"].startswith("Chats ")
        assert "New · an empty chat" in by_key["ctrl+n"]
        assert "Send text as it is" in by_key["/raw"]
        await pilot.resize_terminal(100, 40)
        listed = app.screen.query_one(CommandList)
        await wait_until(lambda: len(str(listed.get_option_at_index(0).prompt)) == 88)
        await pilot.press("escape")
        lines = await _palette(app, pilot, "theme ingot-light")
        assert "Theme ingot-light" in lines[0]
        await pilot.click(CommandList, offset=(12, 0))
        await wait_until(lambda: app.theme == "ingot-light")
        assert services.config.theme == "ingot-light"


async def test_the_palette_of_another_screen_has_its_own_first_and_the_chats(services):
    app = IngotApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        await out_of_models(pilot)
        await pilot.press("f6")
        await wait_until(lambda: getattr(app.screen, "MODE", "") == "monitor")
        await pilot.pause()
        tasks = list(dict.fromkeys(one.task for one in commands(app.screen)))
        assert tasks[0] == "Monitor"
        assert tasks[-3:] == ["Screens", "Chat", "App"]
        lines = await _palette(app, pilot, "find a model")
        assert lines[0].endswith("/find")
        await pilot.press("enter")
        await wait_until(lambda: isinstance(app.screen, FindScreen))
        assert app.current_mode == "chat"


async def test_help_is_put_together_by_task_filtered_and_scrolled(services):
    app = IngotApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        chat = await out_of_models(pilot)
        titles = list(groups(chat))
        assert titles[:7] == [
            "Write", "Answer", "Messages", "Chats", "Model", "Screens", "App",
        ]  # fmt: skip
        await pilot.press("f1")
        left, right = pilot.app.screen.query("#key-columns > Vertical")
        assert left.region.right <= right.region.x
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: left.region.x == right.region.x)
        help = app.screen
        assert isinstance(help, HelpScreen)
        scroll = help.query_one("VerticalScroll")
        await wait_until(lambda: scroll.max_scroll_y > 0)
        await pilot.press("pagedown")
        await wait_until(lambda: scroll.scroll_y > 0)
        before = scroll.region.height
        await pilot.press(*"branch before")
        drawn = [one for one in help.query(KeyGroup) if one.display]
        assert [(one.title, [row.keys for row in one.rows]) for one in drawn] == [
            ("Messages", [["alt+←"]])
        ]
        assert scroll.scroll_y == 0
        assert scroll.region.height == before, "the box does not move"
        help.query_one(Input).value = "no such thing"
        await wait_until(lambda: help.query_one("#no-key").display)
        await pilot.press("escape")
        await wait_until(lambda: app.screen is not help)


async def test_a_palette_that_closes_after_its_mode_was_left_takes_no_other_screen(
    services,
):
    """ctrl+p, esc and F6 in one go: esc reaches the palette when the monitor is shown already."""
    app = IngotApp(services)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        palette = app.screen
        await app.switch_mode("monitor")
        monitor = app.screen
        assert monitor is not palette
        palette.dismiss()
        await pilot.pause()
        assert app.screen is monitor
        await app.switch_mode("chat")
        await wait_until(lambda: palette not in app.screen_stack)
