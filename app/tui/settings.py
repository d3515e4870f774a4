"""What only the terminal app can find wrong with the settings: its keys and its themes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.tui import keys, theme

if TYPE_CHECKING:
    from app.config.settings import Config


def problems(config: Config) -> list[str]:
    """Each in a sentence; none when all is well. Imports the whole app when there is a keymap."""
    found = keys.problems(config.keymap)
    if config.theme and config.theme not in theme.names():
        found.append(f"theme: there is no theme {config.theme}; F12 shows all themes")
    return found
