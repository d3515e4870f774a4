"""The panes of a comparison, laid out so that as many as possible can be read at once."""

from __future__ import annotations

from textual.containers import Container

_WIDE = 100  # columns from which two panes stand side by side
_LEAST_WIDTH = 38  # of a pane beside others
_LEAST_HEIGHT = 7  # below that the panes scroll


class ComparePanes(Container):
    """A grid; ``lay_out`` again when there are other panes."""

    DEFAULT_CSS = """
    ComparePanes { layout: grid; grid-size: 1; height: 1fr; overflow: hidden auto; }
    """

    def lay_out(self) -> None:
        """As many columns as the width has room for, and rows of equal height."""
        count = max(1, len(self.children))
        across = columns(count, self.size.width)
        height = self.size.height // -(-count // across)
        self.styles.grid_size_columns = across
        self.styles.grid_rows = "1fr" if height >= _LEAST_HEIGHT else f"{_LEAST_HEIGHT}"

    def on_resize(self) -> None:
        self.lay_out()


def columns(count: int, width: int) -> int:
    """How many of ``count`` panes stand side by side in ``width`` cells. Rows are as full as they
    can be: four panes are two and two, not three and one."""
    if count <= 2:
        return count if width >= _WIDE else 1
    across = max(1, min(count, width // _LEAST_WIDTH))
    rows = -(-count // across)
    return -(-count // rows)
