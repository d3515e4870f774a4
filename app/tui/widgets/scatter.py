"""A chart of size against divergence that fills its widget."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from app.builds.results import Result


class Scatter(Widget):
    """Letters stand for the files of a result; see ``app.builds.plot``."""

    DEFAULT_CSS = """
    Scatter { height: 1fr; min-height: 0; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._result: Result | None = None

    def show(self, result: Result | None) -> None:
        self._result = result
        self.refresh()

    def render(self) -> RenderResult:
        if self._result is None:
            return ""
        lines = self._result.plot(self.size.width, self.size.height)
        if not lines and self._result.chart is None:
            return "Nothing was measured, so there is no chart."
        return Content("\n".join(lines))
