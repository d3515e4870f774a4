"""The frame around every mode: its tabs, what it tells of the model, and its keys."""

from pathlib import Path
from typing import Any

from textual.widgets import Static
from textual.widgets._footer import FooterKey

from app.tui.app import IngotApp
from app.tui.modes import MODES
from app.tui.screens.models import ModelsScreen
from app.tui.services import Start, open_services
from app.tui.widgets.frame import AppFooter, ModeScreen, ModeTab
from tests.adapters import write_adapter
from tests.app.tui.chat_app import answered
from tests.app.tui.conftest import ask, is_ready
from tests.support import wait_until


def loaded(app: IngotApp) -> Static:
    """The right end of the header."""
    return app.screen.query_one("#loaded", Static)


def footer(app: IngotApp) -> list[str]:
    """What the footer's keys do."""
    return [key.description for key in app.screen.query(FooterKey)]


def clipped(app: IngotApp, width: int) -> list[Any]:
    """What of the frame does not fit into this width."""
    screen = app.screen
    assert isinstance(screen, ModeScreen)
    shown = (*screen.query(FooterKey), *screen.query(ModeTab), loaded(app))
    found = [one for one in shown if one.region.right > width or one.region.height != 1]
    for tab in screen.query(ModeTab):
        told = str(tab.visual)
        if tab.mode.title not in told or len(told) > tab.content_size.width:
            found.append(tab)
    if len(str(loaded(app).visual)) > loaded(app).content_size.width:
        found.append(loaded(app))
    return found + [keys for keys in screen.query(AppFooter) if keys.max_scroll_x]


async def test_tabs_turn_and_nothing_is_clipped_or_covered(make: Any) -> None:
    app = make()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:

        async def resized(width: int, height: int) -> None:
            await pilot.resize_terminal(width, height)
            await wait_until(lambda: app.screen.size == (width, height))

        for mode in (*MODES[1:], MODES[0]):
            tabs = list(app.screen.query(ModeTab))
            assert await pilot.click(tabs[MODES.index(mode)])
            await wait_until(lambda mode=mode: app.current_mode == mode.name)
        for number, mode in enumerate(MODES):
            await pilot.press(mode.key)
            await wait_until(lambda mode=mode: app.current_mode == mode.name)
            [active] = app.screen.query(ModeTab).filter(".-active")
            assert active.mode == mode
            for width in (60, 200):
                await resized(width, 24)
                await wait_until(lambda: {"Help", "Commands"} <= set(footer(app)))
                await wait_until(lambda width=width: not clipped(app, width))
            app.notify("It could not be loaded. " * 4, severity="error", timeout=60)
            await wait_until(lambda: list(app.screen.query("Toast")))
            await resized(*((80, 24), (120, 40))[number % 2])
            await pilot.pause()
            screen = app.screen
            toast = screen.query("Toast").first().region
            assert screen.region.contains_region(toast)
            others = [one for one in screen.children if not one.has_class("-textual-system")]
            assert [one for one in others if one.region.overlaps(toast)] == []
            app.clear_notifications()
            await wait_until(lambda: not list(app.screen.query("Toast")))


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
        await wait_until(lambda: any("bad.gguf" in one.message for one in app._notifications))


async def test_an_adapter_is_chosen_in_the_prompt(
    home: Path, gguf_file: Path, pebble: Path, tmp_path: Path
):
    files = (
        write_adapter(pebble, tmp_path / f"{name}.gguf", len(name)) for name in ("poet", "law")
    )
    given = tuple(map(str, files))
    with open_services(Start(str(gguf_file), adapters=given)) as services:
        app, host = IngotApp(services), services.host
        async with app.run_test(size=(120, 30)) as pilot:
            await wait_until(lambda: is_ready(app))
            screen = app.screen
            await wait_until(lambda: "+ poet" in str(loaded(app).visual))
            await pilot.press(*"/adapter l")
            await pilot.press("tab")
            assert screen.prompt.text == "/adapter law"
            await pilot.press("enter")
            await wait_until(lambda: "+ law" in str(loaded(app).visual))
            assert host.adapter == "law"
            await pilot.press(*"Hello", "enter")
            await answered(screen, 2)
            assert screen.path[-1].model == host.label
            assert host.label.endswith(" + law")
            await ask(pilot, "/adapter nix")
            await wait_until(lambda: "there is: poet, law" in str(screen.menu.visual))
            await ask(pilot, "/adapter")
            told = "law is on. There is: poet, law, or off."
            await wait_until(lambda: told in [one.message for one in app._notifications])
            await ask(pilot, "/adapter off")
            await wait_until(lambda: "+" not in str(loaded(app).visual))
            assert host.adapter is None
