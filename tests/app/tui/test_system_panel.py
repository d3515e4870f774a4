from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import OptionList, TextArea

from app.chat.presets import find
from app.tui.screens.answering import SystemScreen
from tests.app.tui.conftest import SIZES
from tests.support import wait_until


async def test_the_text_is_what_the_chat_gets(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(SystemScreen("You are", {}))
        await pilot.pause()
        await pilot.press("space", "b", "r", "i", "e", "f", "ctrl+s")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == {"system": "You are brief"}


async def test_a_blank_text_is_none(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(SystemScreen("x", {}))
        await pilot.pause()
        await pilot.press("backspace", "space", "ctrl+s")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with == {"system": None}


async def test_a_preset_brings_its_sampling(bare: Any) -> None:
    panel = SystemScreen("old", {})
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(panel)
        await pilot.pause()
        await _choose(panel, pilot, "precise")
        await pilot.press("ctrl+s")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with["sampling"] == {"temperature": 0}
    assert "exactly" in bare.ended_with["system"]


async def test_a_preset_is_saved_with_the_chats_sampling_and_deleted(bare: Any, home: Path) -> None:
    panel = SystemScreen("Rhyme.", {"seed": 5})
    settings = home / "config" / "config.toml"
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(panel)
        await pilot.pause()
        await pilot.press("f9")
        await wait_until(lambda: bare.screen is not panel)
        await pilot.pause()
        await pilot.press(*"poet", "enter")
        await wait_until(lambda: any(one.name == "poet" for one in bare.services.config.presets))
        assert "Rhyme." in settings.read_text()
        assert find(bare.services.config, "poet").sampling == {"seed": 5}

        await pilot.pause()
        await _highlight(panel, pilot, "poet")
        await pilot.press("delete")
        await wait_until(lambda: bare.screen is not panel)
        await pilot.pause()
        await pilot.press("y")
        await wait_until(lambda: not bare.services.config.presets)
        assert "Rhyme." not in settings.read_text()


async def test_a_preset_of_the_app_is_not_deleted(bare: Any) -> None:
    panel = SystemScreen(None, {})
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(panel)
        await pilot.pause()
        await _highlight(panel, pilot, "coder")
        await pilot.press("delete")
        await pilot.pause()
        await pilot.press("y")
        await pilot.pause()
        found = panel.query_one("#presets", OptionList)
        assert any(option.id == "coder" for option in found.options)


async def _highlight(panel: SystemScreen, pilot: Any, name: str) -> None:
    found = panel.query_one("#presets", OptionList)
    found.focus()
    found.highlighted = found.get_option_index(name)
    await pilot.pause()


async def _choose(panel: SystemScreen, pilot: Any, name: str) -> None:
    await _highlight(panel, pilot, name)
    await pilot.press("enter")
    await wait_until(lambda: panel.query_one("#text", TextArea).has_focus)


@pytest.mark.parametrize("size", SIZES)
def test_picture(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        panel = SystemScreen("You answer in verse.\nNever more than four lines.", {})
        bare.show(panel)
        await pilot.pause()

    assert snap(bare, terminal_size=size, run_before=open_it)
