"""The recipes to choose among."""

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable

from app.builds.settings import DEFAULT_RECIPES, estimated_size, offered
from quantize.disk import human
from quantize.recipes.recipe import RECIPES, Recipe

_COLUMNS = (
    *(("tick", "", 3), ("name", "Recipe", 13), ("format", "Format", 6)),
    *(("bits", "Bits", 4), ("size", "About", 7)),
)
_PADDING, _SCROLLBAR = 2, 2


class RecipeTable(DataTable[Text]):
    """One row a recipe, ticked with space or enter. ``chosen`` keeps the order of the rows."""

    HELP = """
    A recipe is one kind of file. **space** or **enter** ticks the one under the cursor. The four
    that are ticked at first are what most people want: 4 and 8 bits for llama.cpp and for ONNX
    Runtime. Bits are nominal: what a weight takes with its scales where all of it fits the type.
    Sizes are estimates from them; small models' files are larger.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "select_cursor", "Tick", id="recipes.tick"),
    ]

    class Changed(Message):
        """Another choice."""

    @dataclass
    class Shown(Message):
        """The cursor is on another recipe."""

        advice: str

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self._ticked = set(DEFAULT_RECIPES)
        self._parameters: int | None = None

    @property
    def chosen(self) -> tuple[str, ...]:
        return tuple(r.name for r in offered() if r.name in self._ticked)

    def choose(self, names: tuple[str, ...]) -> None:
        self._ticked = set(names)
        for name in self.rows:
            self.update_cell(name, "tick", self._tick(str(name.value)))
        self.post_message(self.Changed())

    def on_mount(self) -> None:
        for key, title, width in _COLUMNS:
            self.add_column(title, key=key, width=width)
        self.add_column("What it is for", key="advice", width=1)
        for recipe in offered():
            self.add_row(
                self._tick(recipe.name),
                Text(recipe.name),
                Text(recipe.format),
                Text(f"{recipe.bits_per_weight:.1f}", justify="right"),
                self._about(recipe.name),
                Text(_advice(recipe), no_wrap=True, overflow="ellipsis"),
                key=recipe.name,
            )

    def on_resize(self, event: events.Resize) -> None:
        """The advice takes the room that is left; all of it is told of the row under the cursor."""
        fixed = sum(width + _PADDING for _, _, width in _COLUMNS) + _PADDING + _SCROLLBAR
        column = next(c for c in self.columns.values() if c.key.value == "advice")
        column.width = max(event.size.width - fixed, 1)
        self.refresh()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        name = str(event.row_key.value)
        self.post_message(self.Shown(f"{name}: {_advice(RECIPES[name])}"))

    def set_parameters(self, parameters: int | None) -> None:
        """The number of the model's weights, for the sizes; None while it is not known."""
        if parameters == self._parameters:
            return
        self._parameters = parameters
        for recipe in offered():
            self.update_cell(recipe.name, "size", self._about(recipe.name))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        name = str(event.row_key.value)
        self._ticked ^= {name}
        self.update_cell(name, "tick", self._tick(name))
        self.post_message(self.Changed())

    def _tick(self, name: str) -> Text:
        return Text("[x]" if name in self._ticked else "[ ]")

    def _about(self, name: str) -> Text:
        known = self._parameters
        text = human(estimated_size(known, RECIPES[name])) if known is not None else ""
        return Text(text, justify="right")


def _advice(recipe: Recipe) -> str:
    return recipe.advice + ("; needs a text for the matrix" if recipe.needs_imatrix else "")
