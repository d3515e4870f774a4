"""Widgets that grow while an answer streams: laid out and drawn no more than that needs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.geometry import Region, Size
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.widget import Widget
else:
    Widget = object  # Textual takes styles from a class's first base only, where that is a widget


class Steady(Widget):
    """A new size asks for no further layout: Textual would lay out the whole screen a second time,
    to the same end, whenever anything has grown."""

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)


class Column(Steady):
    """A column whose height, and those of its children, follow from its width: however high it has
    become, children that did not change are not measured again.

    Its first ``folded`` rows take their place, but the children that end there are not laid out:
    that takes time for each widget that there is, seen or not.
    """

    folded = 0
    _arranged: Any = None

    def arrange(self, size: Size, optimal: bool = False) -> Any:
        whole = super().arrange(size.with_height(0), optimal)
        if not optimal:
            self._arranged = whole
        if self.folded <= 0:
            return whole
        rest = [one for one in whole.placements if one.region.bottom > self.folded]
        widgets = {one.widget for one in rest}
        return replace(whole, placements=rest, widgets=widgets, _spatial_map=whole.spatial_map)

    def fold(self, rows: int) -> "Iterator[Column]":
        """Fold the first ``rows``, also in the columns in it; which columns that were."""
        self.folded = rows - self.styles.gutter.top
        yield self
        for one in self._arranged.placements if self._arranged is not None else ():
            if isinstance(one.widget, Column) and one.region.y < self.folded < one.region.bottom:
                yield from one.widget.fold(self.folded - one.region.y)


class Ground(Column):
    """Under its children, each of its rows looks the same: one is drawn, whatever the height."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, 1)) * crop.height
