from __future__ import annotations

from typing import Any

import pytest

from app.chat.budget import TokenBudget, Way, WayOut
from app.tui.screens.dialogs import OverflowScreen, describe
from tests.app.tui.conftest import SIZES
from tests.support import wait_until

FULL = TokenBudget(2100, 512, 2048)
TIGHT = TokenBudget(1900, 512, 2048)
WAYS = [
    WayOut(Way.SHORTER, "allow an answer of 148 tokens only", TokenBudget(1900, 148, 2048)),
    WayOut(
        Way.DROP_TURNS,
        "leave the oldest 3 turns out of the prompt",
        TokenBudget(900, 512, 2048),
        (1,),
    ),
]


def test_it_says_what_does_not_fit() -> None:
    assert "2,100 tokens, the context holds 2,048" in describe(FULL)
    assert "no room" in describe(FULL)
    assert "leaves 148 for an answer that may have 512" in describe(TIGHT)


async def test_it_ends_with_the_choice(bare: Any) -> None:
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(OverflowScreen(TIGHT, WAYS))
        await pilot.pause()
        await pilot.press("down", "enter")
        await wait_until(lambda: bare.ended_with is not None)
    assert bare.ended_with is WAYS[1]


async def test_leaving_chooses_nothing(bare: Any) -> None:
    bare.ended_with = "open"
    async with bare.run_test(size=(80, 24)) as pilot:
        bare.show(OverflowScreen(FULL, []))
        await pilot.pause()
        await pilot.press("escape")
        await wait_until(lambda: bare.ended_with is None)


@pytest.mark.parametrize("size", SIZES)
def test_picture(bare: Any, snap: Any, size: tuple[int, int]) -> None:
    async def open_it(pilot: Any) -> None:
        bare.show(OverflowScreen(TIGHT, WAYS))
        await pilot.pause()

    assert snap(bare, terminal_size=size, run_before=open_it)
