"""Settings that only the terminal app knows: its theme, and what is wrong with keys and themes."""

from textual.theme import BUILTIN_THEMES

from app.config.settings import Config
from app.tui import keys, theme


def problems(config: Config) -> list[str]:
    """Each in a sentence; none when all is well. Imports the whole app when there is a keymap."""
    _, found = keys.checked(config.keymap)
    if config.theme and config.theme not in (*(own.name for own in theme.OWN), *BUILTIN_THEMES):
        found.append(f"theme: there is no theme {config.theme}; F12 shows all themes")
    return found
