"""Layers against roles: which type each tensor of a file has."""

from textual.app import ComposeResult
from textual.containers import HorizontalScroll, Vertical
from textual.content import Content
from textual.widgets import Static

from app.builds.types import Cell, TypeMap
from app.tui.screens.dialogs import Panel

_SHADE = 55  # percent of the colour behind the largest type
_WIDEST = 3  # columns of a layer


class TypeMapView(Vertical):
    """Each cell has the bits of its type, and is the darker the more they are."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = "Types by layer and role"
        self._map: TypeMap | None = None

    def compose(self) -> ComposeResult:
        yield Static(classes="types-told", markup=False)
        with HorizontalScroll(classes="types-scroll", can_focus=False):
            yield Static(classes="types-cells", markup=False)
        yield Static(classes="types-kinds", markup=False)

    def show(self, found: TypeMap | None) -> None:
        """Of another file; hidden for one that was built by a recipe."""
        self._map = found
        self.set_class(found is None, "-none")
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        found = self._map
        if found is None:
            return
        self.query_one(".types-told", Static).update(found.told)
        names = max(map(len, ("layer", *(name for name, _ in found.roles))))
        room = self.content_size.width - names - 1
        wide = min(max(room // max(len(found.layers), 1), 1), _WIDEST)
        rows = [Content(f"{'layer':<{names}} ") + _numbers(found.layers, wide)]
        for name, cells in found.roles:
            row = [_shown(cell, wide) for cell in cells]
            rows.append(Content.assemble(f"{name:<{names}} ", *row))
        self.query_one(".types-cells", Static).update(Content("\n").join(rows))
        legend = [
            Content.assemble(_shown(cell, 1), f" {cell.kind} {count}")
            for cell, count in found.kinds
        ]
        alone = [Content(f"{name} {cell.kind}") for name, cell in found.others]
        self.query_one(".types-kinds", Static).update(Content("   ").join([*legend, *alone]))


class TypesScreen(Panel[None]):
    """The same in a box, where the screen has no room for it."""

    def __init__(self, recipe: str, found: TypeMap) -> None:
        super().__init__(recipe)
        self._map = found

    def contents(self) -> ComposeResult:
        yield TypeMapView()

    def on_mount(self) -> None:
        self.query_one(TypeMapView).show(self._map)


def _shown(cell: Cell | None, wide: int) -> Content:
    if cell is None:
        return Content(" " * wide)
    shade = round(10 + (_SHADE - 10) * cell.depth)
    digit = f"{cell.digit:>{min(wide, 2)}}{' ' * (wide - 2)}"
    return Content.styled(digit, f"$text on $primary {shade}%")


def _numbers(layers: tuple[int, ...], wide: int) -> Content:
    """Of every fifth layer, where it is."""
    line = ""
    for at, layer in enumerate(layers):
        if at % 5 == 0:
            line = f"{line:<{at * wide}}{layer:>{min(wide, 2)}}"
    return Content.styled(line, "$text-muted")
