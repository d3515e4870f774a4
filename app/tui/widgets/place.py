"""What one reads stays where it is in a window that scrolls, whatever gets its height above it."""

from collections.abc import Sequence

from textual.geometry import Region, clamp
from textual.widget import Widget


class Place:
    """A widget that keeps its place in the window.

    Widgets get their heights some time after they are mounted, and others are mounted above them:
    where one will be is known to the layout only. So every layout asks anew, with ``scrolled``.
    """

    def __init__(self) -> None:
        self.widget: Widget | None = None
        self._was: int | None = None  # its row in what is scrolled, at the last layout
        self.shown = False  # it has to be in view, and not only to stay where it is

    def hold(self, widget: Widget, row: int) -> None:
        """Keep a widget where it is: at ``row`` of what is scrolled."""
        self.widget, self._was, self.shown = widget, row, False

    def show(self, widget: Widget) -> None:
        """Bring all of a widget into view, if it is too tall its beginning, and keep it there."""
        self.widget, self._was, self.shown = widget, None, True

    def let_go(self) -> None:
        self.widget, self._was, self.shown = None, None, False

    def let_go_of(self, widgets: Sequence[Widget]) -> None:
        """These are taken away."""
        if self.widget in widgets:
            self.let_go()

    def scrolled(self, region: Region, now: int, height: int, last: int) -> int:
        """The row that is to be at the top edge when the widget is laid out at ``region``.

        ``now`` is at the top edge, the window has ``height`` rows, ``last`` is as far as it goes.
        """
        row = now if self._was is None else now + region.y - self._was
        self._was = region.y
        if self.shown:
            lowest = region.y if region.height > height else region.bottom - height
            row = clamp(row, lowest, region.y)
        return clamp(row, 0, last)
