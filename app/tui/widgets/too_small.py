"""A cover for terminals in which no screen has room."""

from typing import Any

from textual.app import App
from textual.css.query import NoMatches
from textual.widgets import Static

WIDTH, HEIGHT = 60, 16


class TooSmall(Static):
    """Lies over the whole screen, which keeps running below it."""

    DEFAULT_CSS = """
    TooSmall {
        layer: _toastrack;
        dock: top;
        width: 100%;
        height: 100%;
        content-align: center middle;
        text-align: center;
        background: $background;
    }
    """

    @staticmethod
    def check(app: App[Any]) -> None:
        """Cover the screen that is shown, or uncover it, by the terminal's size."""
        size = app.size
        screen = app.screen
        small = size.width < WIDTH or size.height < HEIGHT
        try:
            cover = screen.query_one(TooSmall)
        except NoMatches:
            if small:
                screen.mount(TooSmall(_text(size.width, size.height)))
            return
        if small:
            cover.update(_text(size.width, size.height))
        else:
            cover.remove()


def _text(width: int, height: int) -> str:
    return f"This terminal has {width}x{height}.\nIngot needs {WIDTH}x{HEIGHT}: make it larger."
