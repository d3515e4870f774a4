from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Input, Static

from app.tui.screens.answering import SamplingScreen
from tests.app.tui.conftest import SIZES
from tests.support import wait_until


async def test_it_ends_with_what_differs_from_the_settings(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(SamplingScreen({"seed": 3}))
        await pilot.pause()
        await pilot.press("alt+l", "end", "backspace", "1", "down", "down", "end", "5", "enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == {"seed": 3, "temperature": 0.1, "top_k": 5}


async def test_a_wrong_value_is_told_as_it_is_typed_and_not_taken(bare: Any) -> None:
    panel = SamplingScreen({})
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(panel)
        await pilot.pause()
        await pilot.press("end", "x")
        hint = panel.query_one("#temperature-hint", Static)
        await wait_until(lambda: hint.has_class("error"))
        assert "0 or more" in str(hint.content)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert bare.screen is panel
        assert panel.focused is panel.query_one("#temperature")
        assert "'0.7x'" in str(panel.query_one(".problem", Static).content)
        await pilot.press("backspace")
        await wait_until(lambda: not hint.has_class("error"))
        await pilot.press("enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == {}


async def test_lines_go_back_to_the_settings_values(bare: Any) -> None:
    panel = SamplingScreen({"temperature": 0.2, "seed": 7, "stop": ["END"]})
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(panel)
        await pilot.pause()
        assert panel.query_one("#stop", Input).value == "END"
        await pilot.press("alt+l")
        assert panel.query_one("#temperature", Input).value == "0.7"
        assert panel.query_one("#seed", Input).value == "7"
        await pilot.press("alt+r", "enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == {}


async def test_leaving_changes_nothing(bare: Any) -> None:
    bare.ended_with = "still open"
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(SamplingScreen({"seed": 3}))
        await pilot.pause()
        await pilot.press("9", "escape")
        await wait_until(lambda: bare.ended_with is None)


@pytest.mark.parametrize("size", SIZES)
def test_picture(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        bare.show(SamplingScreen({"seed": 7, "stop": ["\n\n"]}))
        await pilot.pause()
        await pilot.press("down", "end", "x")

    assert snap(bare, terminal_size=size, run_before=open_it)
