"""Settings that only the terminal app knows: its theme, and what is wrong with keys and themes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.theme import BUILTIN_THEMES, Theme

from app.tui import keys

if TYPE_CHECKING:
    from app.config.settings import Config

# Molten metal on slate. Textual's themes can be chosen as well.
INGOT = Theme(
    name="ingot",
    primary="#E8A33D",
    secondary="#8FA3B8",
    accent="#F2C572",
    warning="#E3B341",
    error="#E5534B",
    success="#57AB5A",
    foreground="#D7DEE6",
    background="#11161C",
    surface="#181F27",
    panel="#222C36",
    variables={
        "footer-key-foreground": "#E8A33D",
        "input-selection-background": "#E8A33D 30%",
        "block-cursor-background": "#E8A33D",
        "block-cursor-foreground": "#11161C",
        "button-color-foreground": "#11161C",
        "border-blurred": "#4A5866",
    },
)


def problems(config: Config) -> list[str]:
    """Each in a sentence; none when all is well. Imports the whole app when there is a keymap."""
    found = keys.problems(config.keymap)
    if config.theme and config.theme not in (INGOT.name, *BUILTIN_THEMES):
        found.append(f"theme: there is no theme {config.theme}; F12 shows all themes")
    return found
