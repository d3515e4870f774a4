"""A cover for terminals in which no screen has room."""

from typing import Any

from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Static

_WIDTH, _HEIGHT = 60, 16  # the least


class TooSmall(Static):
    """Says what is needed; the screen keeps running below it."""


def check_room(screen: Screen[Any], size: Size) -> None:
    """Cover the screen, or uncover it, by the terminal's size."""
    covers = screen.query(TooSmall)
    has, needs = f"{size.width}x{size.height}", f"{_WIDTH}x{_HEIGHT}"
    said = f"This terminal has {has}.\nIngot needs {needs}: make it larger."
    if size.width >= _WIDTH and size.height >= _HEIGHT:
        covers.remove()
    elif covers:
        covers.first().update(said)
    else:
        screen.mount(TooSmall(said))
