"""How the pictures of a screen are put together."""

from typing import Any

from textual._compositor import Compositor
from textual.geometry import Size
from textual.widget import Widget


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
