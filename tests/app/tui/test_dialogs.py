"""What all dialogs share: keys that can be clicked, a way back, one place for what is wrong."""

from typing import Any

import pytest
from textual.content import Content
from textual.widgets import Input, Static

from app.tui.keys import declared
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, KeyHints, Panel, PickScreen
from tests.support import wait_until

SIZES = [(60, 16), (80, 24), (200, 60)]


def pick() -> PickScreen[str]:
    return PickScreen("Metal", [(Content("iron"), "fe"), (Content("gold"), "au")])


def hints(bare: Any) -> str:
    return str(bare.screen.query_one(KeyHints).visual)


def place(bare: Any, words: str) -> tuple[int, int]:
    """Where a key is told, within the line of keys."""
    lines = hints(bare).splitlines()
    [row] = [row for row, line in enumerate(lines) if words in line]
    return lines[row].index(words), row


async def test_the_keys_of_a_dialog_are_told_and_can_be_clicked(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(pick())
        await pilot.pause()
        assert hints(bare) == "enter Choose   esc Back"
        await pilot.press("down")
        await pilot.click(KeyHints, offset=place(bare, "enter Choose"))
        await wait_until(lambda: bare.ended_with == "au")
        bare.show(pick())
        await pilot.pause()
        await pilot.click(KeyHints, offset=place(bare, "esc Back"))
        await wait_until(lambda: bare.ended_with is None)
        assert not isinstance(bare.screen, Panel)


async def test_a_click_beside_a_dialog_leaves_it_unless_something_would_be_lost(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(AskScreen("Name", "old"))
        await pilot.pause()
        await pilot.click(offset=(0, 0))
        await wait_until(lambda: not isinstance(bare.screen, Panel))
        bare.show(AskScreen("Name", "old"))
        await pilot.pause()
        await pilot.press("x")
        await pilot.click(offset=(0, 0))
        assert isinstance(bare.screen, AskScreen)
        await pilot.click("#text")
        assert isinstance(bare.screen, AskScreen)
        await pilot.press("escape")
        await wait_until(lambda: not isinstance(bare.screen, Panel))
        assert bare.ended_with is None


async def test_what_is_wrong_is_said_in_the_dialog_until_it_is_mended(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        number = AskScreen("Rows", wrong=lambda text: "" if text.isdigit() else "Not a number.")
        bare.show(number)
        await pilot.pause()
        problem = number.query_one(".problem", Static)
        await pilot.press("x", "enter")
        assert problem.display
        assert str(problem.visual) == "Not a number."
        await pilot.press("backspace", "7")
        assert not problem.display
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with == "7")


@pytest.mark.parametrize("way", ["escape", "n", "click"])
async def test_no_means_no(bare: Any, way: str) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(ConfirmScreen("Delete it?", "Delete"))
        await pilot.pause()
        if way == "click":
            await pilot.click("#no")
        else:
            await pilot.press(way)
        await wait_until(lambda: bare.ended_with is False)


@pytest.mark.parametrize("size", SIZES)
async def test_dialogs_are_whole_in_every_terminal(bare: Any, size: tuple[int, int]) -> None:
    async with bare.run_test(size=size) as pilot:
        for panel in (pick(), AskScreen("Name"), ConfirmScreen("Delete it? " * 12, "Delete")):
            bare.show(panel)
            await pilot.pause()
            box = panel.query_one(".box")
            assert panel.region.contains_region(box.region)
            assert box.styles.padding.left == box.styles.padding.right
            keys = panel.query_one(KeyHints)
            assert box.region.contains_region(keys.region)
            assert keys.region.height == len(hints(bare).splitlines())
            await pilot.press("escape")
            await wait_until(lambda panel=panel: bare.screen is not panel)


def test_esc_is_the_way_back_from_every_dialog() -> None:
    for owner, found in declared():
        if issubclass(owner, Panel):
            for binding in found:
                if "escape" in binding.key.split(","):
                    assert binding.action in ("leave", "dismiss"), owner


async def test_lines_where_one_types_have_one_look(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(AskScreen("Name"))
        await pilot.pause()
        line = bare.screen.query_one(Input)
        assert line.outer_size.height == 1
        assert line.styles.border_left[0] == "wide"
