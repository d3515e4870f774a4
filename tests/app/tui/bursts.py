"""Keys that come in one burst of input."""

from typing import Any

from textual import events

from tests.app.tui.settling import at_rest

PASTE = "paste: "  # what follows is pasted
_CHARACTERS = {"space": " ", "enter": "\r"}


async def burst(pilot: Any, *keys: str) -> None:
    """All keys are there before the first of them is looked at; what
    begins with ``PASTE`` is pasted."""
    for key in keys:
        if key.startswith(PASTE):
            pilot.app.post_message(events.Paste(key.removeprefix(PASTE)))
        else:
            character = _CHARACTERS.get(key, key if len(key) == 1 else None)
            pilot.app.post_message(events.Key(key, character))
    await at_rest(pilot)
    await pilot.pause()
