"""Panels over a screen: what all share, and those that ask about a chat's next answer; by key and
by mouse, with a picture of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.content import Content
from textual.widgets import Input, OptionList, Static, TextArea

from app.chat.budget import TokenBudget, Way, WayOut
from app.chat.presets import find
from app.tui.keys import declared
from app.tui.screens.answering import SamplingScreen, SystemScreen
from app.tui.screens.dialogs import (
    AskScreen,
    ConfirmScreen,
    CopyChoice,
    KeyHints,
    OverflowScreen,
    Panel,
    PickScreen,
    ThemeScreen,
    describe,
)
from app.tui.screens.files import AttachScreen
from tests.app.tui.conftest import searched
from tests.support import wait_until

OPEN = object()
FULL, TIGHT = TokenBudget(2100, 512, 2048), TokenBudget(1900, 512, 2048)
WAYS = [
    WayOut(Way.SHORTER, "allow an answer of 148 tokens only", TokenBudget(1900, 148, 2048)),
    WayOut(
        Way.DROP_TURNS,
        "leave the oldest 3 turns out of the prompt",
        TokenBudget(900, 512, 2048),
        (1,),
    ),
]


def pick() -> PickScreen[str]:
    return PickScreen("Metal", [(Content("iron"), "fe"), (Content("gold"), "au")])


async def show(pilot: Any, panel: Panel[Any]) -> None:
    pilot.app.ended_with = OPEN
    pilot.app.show(panel)
    await wait_until(lambda: panel.query(KeyHints))
    await pilot.pause()


async def ended(bare: Any) -> Any:
    await wait_until(lambda: bare.ended_with is not OPEN)
    return bare.ended_with


def hints(bare: Any) -> str:
    return str(bare.screen.query_one(KeyHints).visual)


async def hint(pilot: Any, words: str) -> None:
    """Click a key at the bottom of a dialog, once it is told there."""
    await wait_until(lambda: pilot.app.screen.query(KeyHints) and words in hints(pilot.app))
    await pilot.pause()
    lines = hints(pilot.app).splitlines()
    [row] = [row for row, line in enumerate(lines) if words in line]
    assert await pilot.click(KeyHints, offset=(lines[row].index(words), row))


async def option(pilot: Any, text: str, listed: str = "OptionList") -> None:
    """Click a line of a list."""
    found = pilot.app.screen.query_one(listed, OptionList)
    await wait_until(lambda: any(text in str(one.prompt) for one in found.options))
    await pilot.pause()
    lines = [found.render_line(y).text for y in range(found.size.height)]
    [y] = [y for y, line in enumerate(lines) if text in line]
    assert await pilot.click(found, offset=(3, y))


async def test_keys_are_told_and_can_be_clicked_and_so_can_what_is_listed(bare):
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(pilot, pick())
        assert hints(bare) == "enter Choose   esc Back"
        await pilot.press("down")
        await hint(pilot, "enter Choose")
        assert await ended(bare) == "au"
        await show(pilot, pick())
        await hint(pilot, "esc Back")
        assert await ended(bare) is None
        assert not isinstance(bare.screen, Panel)
        for panel, line, result in (
            (CopyChoice([("all", "So."), ("code", "row()")]), "code", "row()"),
            (ThemeScreen(["ingot", "ingot-light"], "ingot"), "ingot-light", "ingot-light"),
            (OverflowScreen(FULL, WAYS), "Leave the oldest", WAYS[1]),
        ):
            await show(pilot, panel)
            await option(pilot, line)
            assert await ended(bare) == result


async def test_a_line_is_asked_for_and_lost_only_by_esc(bare):
    async with bare.run_test(size=(80, 24)) as pilot:
        await show(pilot, AskScreen("Name", "old"))
        line = bare.screen.query_one(Input)
        assert (line.outer_size.height, line.styles.border_left[0]) == (1, "wide")
        await pilot.click(offset=(0, 0))
        assert await ended(bare) is None
        number = AskScreen("Rows", wrong=lambda text: "" if text.isdigit() else "Not a number.")
        await show(pilot, number)
        problem = number.query_one(".problem", Static)
        await pilot.press("x", "enter")
        assert problem.display
        assert str(problem.visual) == "Not a number."
        for place in ({"offset": (0, 0)}, {"widget": "#text"}):
            await pilot.click(**place)
            assert bare.screen is number
        await pilot.press("end", "backspace", "7")
        assert not problem.display
        await pilot.press("enter")
        assert await ended(bare) == "7"
        await show(pilot, AskScreen("Name", "old"))
        await pilot.press("x", "escape")
        assert await ended(bare) is None


async def test_no_means_no(bare):
    async with bare.run_test(size=(80, 24)) as pilot:
        for way, said in (("escape", False), ("n", False), ("#no", False), ("#yes", True)):
            await show(pilot, ConfirmScreen("Delete it?", "Delete"))
            await (pilot.click(way) if way.startswith("#") else pilot.press(way))
            assert await ended(bare) is said


def test_esc_is_the_way_back_from_every_dialog():
    for owner, found in declared():
        if issubclass(owner, Panel):
            for binding in found:
                if "escape" in binding.key.split(","):
                    assert binding.action in ("leave", "dismiss"), owner


async def test_a_system_message_and_its_presets(bare, home: Path):
    settings = home / "config" / "config.toml"
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(pilot, SystemScreen("You are", {}))
        await pilot.press("space", *"brief", "ctrl+s")
        assert await ended(bare) == {"system": "You are brief"}
        panel = SystemScreen("Rhyme.", {"seed": 5})
        await show(pilot, panel)
        await pilot.press("f9")
        await wait_until(lambda: isinstance(bare.screen, AskScreen) and bare.screen.query("#text"))
        bare.screen.query_one(Input).value = "poet"
        await hint(pilot, "enter OK")
        await wait_until(lambda: any(one.name == "poet" for one in bare.services.config.presets))
        assert find(bare.services.config, "poet").sampling == {"seed": 5}
        assert "Rhyme." in settings.read_text()
        await wait_until(lambda: bare.screen is panel)
        await option(pilot, "precise", "#presets")
        assert panel._area.text == "Rhyme.", "the first click goes there"
        await option(pilot, "precise", "#presets")
        precise = find(bare.services.config, "precise")
        await wait_until(lambda: panel._area.text == precise.system)
        assert panel.query_one("#text", TextArea).has_focus
        # One of the app's own is not deleted; one of the user's is.
        for name in ("coder", "poet"):
            await option(pilot, name, "#presets")
            await pilot.press("delete")
            await wait_until(lambda: isinstance(bare.screen, ConfirmScreen))
            await pilot.press("y")
            await wait_until(lambda: bare.screen is panel)
        await wait_until(lambda: not bare.services.config.presets)
        assert "Rhyme." not in settings.read_text()
        listed = panel.query_one("#presets", OptionList)
        assert any(option.id == "coder" for option in listed.options)
        await pilot.press("ctrl+s")
        assert await ended(bare) == {"system": precise.system, "sampling": {"temperature": 0}}


async def test_sampling(bare):
    async with bare.run_test(size=(100, 40)) as pilot:
        await show(pilot, SamplingScreen({"seed": 3}))
        await pilot.press("alt+l", "end", "backspace", "1", "down", "down", "end", "5", "enter")
        assert await ended(bare) == {"seed": 3, "temperature": 0.1, "top_k": 5}
        panel = SamplingScreen({"temperature": 0.2, "seed": 7, "stop": ["END"]})
        await show(pilot, panel)
        assert panel.query_one("#stop", Input).value == "END"
        await hint(pilot, "alt+l Reset line")
        temperature, shown = panel.query_one("#temperature", Input), panel.query_one("#seed", Input)
        assert (temperature.value, shown.value) == ("0.7", "7")
        await pilot.press("end", "x")
        told = panel.query_one("#temperature-hint", Static)
        await wait_until(lambda: told.has_class("error"))
        assert "0 or more" in str(told.content)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert panel.focused is temperature
        assert "'0.7x'" in str(panel.query_one(".problem", Static).content)
        await pilot.press("backspace")
        await wait_until(lambda: not told.has_class("error"))
        await pilot.press("alt+r", "ctrl+s")
        assert await ended(bare) == {}
        await show(pilot, SamplingScreen({"seed": 3}))
        await pilot.press("9", "escape")
        assert await ended(bare) is None


def test_it_says_what_does_not_fit():
    assert "2,100 tokens, the context holds 2,048" in describe(FULL)
    assert "no room" in describe(FULL)
    assert "leaves 148 for an answer that may have 512" in describe(TIGHT)


async def help_of_a_panel(pilot: Any) -> None:
    pilot.app.show(AttachScreen("/no/such"))
    await pilot.pause()
    await pilot.press("f1")


async def palette(pilot: Any) -> None:
    await pilot.press("ctrl+p")
    await wait_until(lambda: pilot.app.screen.query(Input))
    await pilot.press(*"quit")
    await wait_until(lambda: pilot.app.screen.query_one("CommandList").option_count >= 1)
    await searched(pilot.app)


async def sampling(pilot: Any) -> None:
    pilot.app.show(SamplingScreen({"seed": 7, "stop": ["\n\n"]}))
    await pilot.pause()
    await pilot.press("down", "end", "x")


async def system(pilot: Any) -> None:
    pilot.app.show(SystemScreen("You answer in verse.\nNever more than four lines.", {}))


async def overflow(pilot: Any) -> None:
    pilot.app.show(OverflowScreen(TIGHT, WAYS))


@pytest.mark.parametrize("opened", [help_of_a_panel, palette, sampling, system, overflow])
def test_picture(bare, snap, opened: Callable[[Any], Any]):
    async def open_it(pilot: Any) -> None:
        await opened(pilot)
        await pilot.pause()

    assert snap(bare, terminal_size=(80, 24), run_before=open_it)


def test_picture_of_a_terminal_that_is_too_small(bare, snap):
    assert snap(bare, terminal_size=(50, 12))
