"""The command palette's entries: whatever a key does on the screen it was opened from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from textual.app import SystemCommand
from textual.screen import Screen

from app.tui.keys import shown

# Opening the palette from itself would do nothing.
_LEFT_OUT = frozenset({"app.palette"})


def commands(screen: Screen[Any]) -> Iterator[SystemCommand]:
    """One entry for each binding that has an id and says what it does."""
    seen = set(_LEFT_OUT)
    for node, binding, enabled, tooltip in screen.active_bindings.values():
        if binding.id is None or not binding.description or not enabled or binding.id in seen:
            continue
        seen.add(binding.id)
        more = tooltip or binding.tooltip
        title = f"{binding.description}: {more}" if more else binding.description
        run = partial(screen.app.run_action, binding.action, node)
        yield SystemCommand(title, shown(binding.key), run)
