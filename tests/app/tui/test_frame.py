"""The frame around every mode: its tabs, what it tells of the model, and its keys."""

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Static
from textual.widgets._footer import FooterKey

from app.tui.app import IngotApp
from app.tui.modes import MODES
from app.tui.screens.models import ModelsScreen
from app.tui.widgets.frame import AppFooter, ModeScreen, ModeTab
from tests.app.tui.conftest import ask, is_ready
from tests.support import wait_until


def loaded(app: IngotApp) -> Static:
    """The right end of the header."""
    return app.screen.query_one("#loaded", Static)


def footer(app: IngotApp) -> list[str]:
    """What the footer's keys do."""
    return [key.description for key in app.screen.query(FooterKey)]


async def test_tabs_turn_by_keys_and_clicks(chat_app: IngotApp) -> None:
    async with chat_app.run_test(size=(120, 30)) as pilot:
        await wait_until(lambda: is_ready(chat_app))
        for mode in (*MODES[1:], MODES[0]):
            await pilot.press(mode.key)
            await wait_until(lambda mode=mode: chat_app.current_mode == mode.name)
            [active] = chat_app.screen.query(ModeTab).filter(".-active")
            assert active.mode == mode
        for mode in (*MODES[1:], MODES[0]):
            tabs = list(chat_app.screen.query(ModeTab))
            await pilot.click(tabs[MODES.index(mode)])
            await wait_until(lambda mode=mode: chat_app.current_mode == mode.name)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
async def test_nothing_of_the_frame_is_clipped(chat_app: IngotApp, width: int) -> None:
    async with chat_app.run_test(size=(width, 24)) as pilot:
        await wait_until(lambda: is_ready(chat_app))
        for mode in MODES:
            await pilot.press(mode.key)
            await wait_until(lambda mode=mode: chat_app.current_mode == mode.name)
            await wait_until(lambda: {"Help", "Commands"} <= set(footer(chat_app)))
            await pilot.pause()
            screen = chat_app.screen
            assert isinstance(screen, ModeScreen)
            for one in (*screen.query(FooterKey), *screen.query(ModeTab), loaded(chat_app)):
                assert one.region.right <= width, (mode.name, one)
                assert one.region.height == 1
            for tab in screen.query(ModeTab):
                assert tab.mode.title in str(tab.visual)
                assert len(str(tab.visual)) <= tab.content_size.width
            assert len(str(loaded(chat_app).visual)) <= loaded(chat_app).content_size.width
            [keys] = screen.query(AppFooter)
            assert keys.max_scroll_x == 0


async def test_model_and_speed_are_told_on_every_screen_and_stop_while_something_runs(
    endless_app: IngotApp,
) -> None:
    async with endless_app.run_test(size=(120, 30)) as pilot:
        await wait_until(lambda: is_ready(endless_app))
        await wait_until(lambda: endless_app.services.host.label in str(loaded(endless_app).visual))
        await wait_until(lambda: "Help" in footer(endless_app))
        assert "Stop" not in footer(endless_app)
        await ask(pilot, "Tell me a long story about a fox, a crow and a bear.")
        await wait_until(lambda: "tok/s" in str(loaded(endless_app).visual))
        assert endless_app.decoding
        await wait_until(lambda: "Stop" in footer(endless_app))
        await pilot.press("f6")
        await wait_until(lambda: "tok/s" in str(loaded(endless_app).visual))
        await pilot.press("f2", "escape")
        await wait_until(lambda: not endless_app.decoding)
        await wait_until(lambda: "Stop" not in footer(endless_app))


async def test_the_header_says_why_there_is_no_model(services: Any, tmp_path: Path) -> None:
    app = IngotApp(services)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF, but no more")
    async with app.run_test(size=(120, 30)) as pilot:
        await wait_until(lambda: isinstance(app.screen, ModelsScreen))  # opens by itself
        await pilot.press("escape")
        await wait_until(lambda: isinstance(app.screen, ModeScreen))
        await wait_until(lambda: str(loaded(app).visual) == "no model")
        app.load_model(str(tmp_path / "bad.gguf"))
        await wait_until(lambda: str(loaded(app).visual) == "the model did not load")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_toast_covers_nothing(chat_app: IngotApp, size: tuple[int, int]) -> None:
    async with chat_app.run_test(size=size, notifications=True) as pilot:
        await wait_until(lambda: is_ready(chat_app))
        for mode in MODES:
            await pilot.press(mode.key)
            await wait_until(lambda mode=mode: chat_app.current_mode == mode.name)
            chat_app.notify("It could not be loaded. " * 4, severity="error", timeout=60)
            await wait_until(lambda: list(chat_app.screen.query("Toast")))
            await pilot.pause()
            toast = chat_app.screen.query("Toast").first().region
            assert chat_app.screen.region.contains_region(toast)
            screen = chat_app.screen
            others = [one for one in screen.children if not one.has_class("-textual-system")]
            assert [one for one in others if one.region.overlaps(toast)] == []
            chat_app.clear_notifications()
            await wait_until(lambda: not list(chat_app.screen.query("Toast")))
