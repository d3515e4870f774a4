"""Keys that come in one burst of input."""

from __future__ import annotations

from typing import Any

from textual import events

from tests.app.tui.settling import at_rest

_CHARACTERS = {"space": " ", "enter": "\r"}


async def burst(pilot: Any, *keys: str) -> None:
    """All keys are there before the first of them is looked at."""
    for key in keys:
        character = _CHARACTERS.get(key, key if len(key) == 1 else None)
        pilot.app.post_message(events.Key(key, character))
    await at_rest(pilot)
    await pilot.pause()
