"""What to build: the model, the recipes, a few options, and what the run will need."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Button, Input, Static

from app.builds.settings import Settings
from app.tui.widgets.form_fields import Check, Field, Form
from app.tui.widgets.quantize_recipes import RecipeTable
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.builds.forecast import Forecast

_AGAIN_S = 2.0  # while another run builds there: its files appear as they are finished
_NO_MODEL = "A folder of a Hugging Face model, a .gguf file of floats, or ORG/NAME on the hub."


class QuantizeForm(Form):
    """``Foreseen`` when what the run needs is known."""

    HELP = """
    Name a model and choose recipes; below them is what the run needs. Empty fields are left to
    quantize. **Matrix** is a text of the kind that the model is for: an importance
    matrix is computed from it. **LoRA** is an adapter that is merged first. **tab** takes the path
    that is suggested.
    """
    DEFAULT_CSS = """
    QuantizeForm {
        padding: 0 1;
        & > RecipeTable { height: 1fr; min-height: 4; }
        & > #advice { height: 1; text-style: italic; }
        & > #options { height: 1; }
        & > #options > Button { min-width: 12; dock: right; }
        & > #forecast { height: auto; max-height: 8; }
    }
    """

    @dataclass
    class Foreseen(Message):
        """``forecast`` is what the form asks for now; None when that is not a run."""

        forecast: Forecast | None

    def compose(self) -> ComposeResult:
        yield Field("Model", "folder, .gguf file of floats, or ORG/NAME", "model", ".gguf")
        yield RecipeTable(id="recipes")
        yield Static(id="advice", markup=False)
        yield Field("Into", "MODEL-built beside the model", "out")
        yield Field("Matrix", "a text or a ready importance matrix (optional)", "imatrix", "")
        yield Field("LoRA", "an adapter to merge first (optional)", "lora")
        with Horizontal(id="options"):
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

    @on(RecipeTable.Shown)
    def _advise(self, event: RecipeTable.Shown) -> None:
        self.query_one("#advice", Static).update(event.advice)

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
