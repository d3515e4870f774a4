from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Input

from app.tui.screens.files import AttachScreen
from tests.app.tui.conftest import SIZES, searched
from tests.support import wait_until


@pytest.mark.parametrize("size", SIZES)
def test_help_of_a_panel(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        bare.show(AttachScreen("/no/such"))
        await pilot.pause()
        await pilot.press("f1")
        await pilot.pause()

    assert snap(bare, terminal_size=size, run_before=open_it)


@pytest.mark.parametrize("size", SIZES)
def test_palette(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        await pilot.press("ctrl+p")
        await wait_until(lambda: bare.screen.query(Input))
        await pilot.press(*"quit")
        await wait_until(lambda: bare.screen.query_one("CommandList").option_count >= 1)
        await searched(bare)
        await pilot.pause()

    assert snap(bare, terminal_size=size, run_before=open_it)


def test_too_small(bare: Any, snap: Any) -> None:
    assert snap(bare, terminal_size=(50, 12))
