"""What to build: the model, the recipes, a few options, and what the run will need."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Button, Input, Static

from app.builds.settings import DEFAULT_RECIPES, Settings, estimated_size, offered
from app.tui.widgets.form import Check, Form, path_line
from app.tui.widgets.table import Column, Table
from quantize.disk import human
from quantize.recipes.recipe import Recipe
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.builds.forecast import Forecast

_AGAIN_S = 2.0  # while another run builds there: its files appear as they are finished
_NO_MODEL = "A folder of a Hugging Face model, a .gguf file of floats, or ORG/NAME on the hub."


class RecipeTable(Table[Recipe]):
    """The recipes to choose among, ticked with space or enter."""

    HELP = """
    A recipe is one kind of file. **space** or **enter** ticks the one under the cursor. The four
    that are ticked at first are what most people want: 4 and 8 bits for llama.cpp and for ONNX
    Runtime. Bits are nominal: what a weight takes with its scales where all of it fits the type.
    Sizes are estimates from them; small models' files are larger.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "select", "Tick", id="recipes.tick"),
    ]

    class Changed(Message):
        """Another choice."""

    def __init__(self, id: str | None = None) -> None:
        columns: tuple[Column[Recipe], ...] = (
            Column("", lambda r: f"[{'x' if r.name in self._ticked else ' '}]", 3),
            Column("Recipe", lambda r: r.name, 13),
            Column("Format", lambda r: r.format, 6),
            Column("Bits", lambda r: f"{r.bits_per_weight:.1f}", 4, right=True),
            Column("About", self._about, 7, right=True),
            Column("What it is for", advice),
        )
        super().__init__(columns, key=lambda recipe: recipe.name, id=id)
        self._ticked = set(DEFAULT_RECIPES)
        self._parameters: int | None = None

    def on_mount(self) -> None:
        self.show(offered())

    def _about(self, recipe: Recipe) -> str:
        known = self._parameters
        return "" if known is None else human(estimated_size(known, recipe))

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names, in the order of the rows."""
        return tuple(r.name for r in offered() if r.name in self._ticked)

    def choose(self, names: tuple[str, ...]) -> None:
        self._ticked = set(names)
        self.refresh()
        self.post_message(self.Changed())

    def set_parameters(self, parameters: int | None) -> None:
        """The number of the model's weights, for the sizes; None while it is not known."""
        if parameters != self._parameters:
            self._parameters = parameters
            self.refresh()

    def action_select(self) -> None:
        if self.record is not None:
            self._ticked ^= {self.record.name}
            self.refresh()
            self.post_message(self.Changed())


def advice(recipe: Recipe) -> str:
    """What a recipe is for."""
    return recipe.advice + ("; needs a text for the matrix" if recipe.needs_imatrix else "")


class QuantizeForm(Form):
    """``Foreseen`` when what the run needs is known."""

    HELP = """
    Name a model and choose recipes; below them is what the run needs. Empty fields are left to
    quantize. **Matrix** is a text of the kind that the model is for: an importance
    matrix is computed from it. **LoRA** is an adapter that is merged first. **tab** takes the path
    that is suggested.
    """

    @dataclass
    class Foreseen(Message):
        """``forecast`` is what the form asks for now; None when that is not a run."""

        forecast: Forecast | None

    def compose(self) -> ComposeResult:
        yield path_line("Model", "folder, .gguf file of floats, or ORG/NAME", "model", ".gguf")
        yield RecipeTable(id="recipes")
        yield Static(id="advice", markup=False)
        yield path_line("Into", "MODEL-built beside the model", "out")
        yield path_line("Matrix", "a text or a ready importance matrix (optional)", "imatrix", "")
        yield path_line("LoRA", "an adapter to merge first (optional)", "lora")
        with Horizontal(classes="form-line"):
            yield Check("Measure quality and speed", value=True, id="measure")
            yield Check("Build again", value=False, id="fresh")
            yield Button("Build", variant="primary", compact=True, action="screen.build")
        yield Static(_NO_MODEL, id="forecast", markup=False)

    @property
    def settings(self) -> Settings:
        return Settings(
            self.text_of("model"),
            self.query_one(RecipeTable).chosen,
            out=self.text_of("out"),
            imatrix=self.text_of("imatrix"),
            lora=self.text_of("lora"),
            measure=self.query_one("#measure", Check).value,
            fresh=self.query_one("#fresh", Check).value,
        )

    @on(Table.Highlighted)
    def _advise(self) -> None:
        recipe = self.query_one(RecipeTable).record
        text = f"{recipe.name}: {advice(recipe)}" if recipe else ""
        self.query_one("#advice", Static).update(text)

    @on(Input.Changed)
    @on(RecipeTable.Changed)
    @on(Check.Changed)
    def _changed(self) -> None:
        self.look_later()

    async def look(self) -> None:
        settings = self.settings
        forecast, lines = None, [_NO_MODEL]
        if settings.model.strip():
            try:
                if settings.from_hub:
                    self.query_one("#forecast", Static).update("Asking the hub ...")
                forecast = await asyncio.to_thread(foreseen, settings)
                lines = forecast.lines()
            except (IngotError, OSError) as error:
                lines = [f"✗ {error}"]
        self.query_one(RecipeTable).set_parameters(forecast.source.parameters if forecast else None)
        self.query_one("#forecast", Static).update("\n".join(lines))
        self.post_message(self.Foreseen(forecast))
        if forecast is not None and forecast.builder is not None:
            self.look_later(_AGAIN_S)


def foreseen(settings: Settings) -> Forecast:
    """For a thread of its own: the first call imports numpy and the hub's client."""
    from app.builds.forecast import foresee

    return foresee(settings)
