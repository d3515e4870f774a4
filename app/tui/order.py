"""Keys act in the order in which they were typed, also those of one burst of input."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from textual.app import App
from textual.screen import Screen

_AT_MOST_S = 1.0  # a widget that waits for something else does not hold up a key like ctrl+c


async def catch_up(app: App[Any], key: str) -> None:
    """Wait until the focused widget has done what was typed before ``key``, if that is bound with
    priority: such a key acts at once, while the letters before it wait in the widget's queue."""
    widget = app.focused
    bound = None if widget is None else app.screen.active_bindings.get(key)
    if widget is None or bound is None or not bound.binding.priority:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_AT_MOST_S):
            for node in widget.ancestors_with_self:
                # What a key makes a widget tell, such as a text to be sent, is behind the first.
                for _ in range(2):
                    done = asyncio.Event()
                    if node.call_later(done.set):
                        await done.wait()
                if isinstance(node, Screen):
                    return
