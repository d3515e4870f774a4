"""How the pictures of a screen are put together."""

from typing import Any

from rich.cells import cell_len
from rich.segment import Segment
from textual._compositor import Compositor
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Size
from textual.widget import Widget

from runtimes.untrusted import visible


class SteadyCompositor(Compositor):
    """A new size of what never scrolls asks for no further layout: Textual 8.2.8 would lay out the
    whole screen a second time, to the same end, whenever anything has come or grown."""

    def reflow(self, parent: Widget, size: Size) -> Any:
        """Textual's. A reactive's new value asks for a layout; one that it has already does not."""
        result = super().reflow(parent, size)
        for widget, geometry in self._full_map.items():
            if widget.styles.overflow_x == widget.styles.overflow_y == "hidden":
                widget.set_reactive(Widget.virtual_size, geometry.virtual_size)
        return result


class ControlFilter(LineFilter):
    """Shows control characters in the lines of all widgets: no text reaches the terminal as a
    command, nor does the address of a link."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, as wide as before: what a sign takes, the blanks behind it give."""
        for text, style, _ in segments:
            if not text.isprintable() or (style is not None and style.link):
                break
        else:
            return segments  # nearly always
        made, wider = [], 0
        for text, style, control in segments:
            seen = visible(text)
            wider += cell_len(seen) - cell_len(text)
            spare = min(max(wider, 0), len(seen) - len(seen.rstrip(" ")))
            wider -= spare
            kept = style and style.update_link(style.link and visible(style.link))
            made.append(Segment(seen[: len(seen) - spare], kept, control))
        return Segment.adjust_line_length(made, sum(cell_len(one.text) for one in segments))
