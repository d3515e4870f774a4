"""The app's own theme: molten metal on slate. Textual's themes can be chosen as well."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

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
DEFAULT = INGOT.name


def names() -> frozenset[str]:
    """Of all themes that can be chosen."""
    return frozenset({DEFAULT, *BUILTIN_THEMES})
