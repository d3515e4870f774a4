"""What to build: the model, the recipes, a few options, and what the run will need."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Static

from app.builds.settings import TARGETS, FieldError, Settings
from app.tui.widgets.form import Check, Form, Group, path_field, text_field
from app.tui.widgets.recipe_cards import RecipeCards
from app.tui.widgets.recipe_chart import RecipeChart
from quantize.disk import human
from runtimes.errors import IngotError

if TYPE_CHECKING:
    from app.builds.forecast import BuildForecast
    from app.builds.prospects import Prospects
    from quantize.recipes import Recipe

_AGAIN_S = 2.0  # while another run builds there: its files appear as they are finished
# Options of the command as the form calls them.
_LABELS = {
    "--out": "“Into”",
    "--imatrix": "“Matrix”",
    "--to gguf": "recipes of llama.cpp",
    "without --no-measure": "tick “Measure quality and speed”",
}
_FIELDS = ("model", "out", "targets", "imatrix", "lora")


def advice(recipe: Recipe) -> str:
    """What a recipe is for."""
    return recipe.advice + ("; needs a text for the matrix" if recipe.needs_imatrix else "")


class QuantizeForm(Form):
    """``Foreseen`` when what the run needs is known."""

    HELP = """
    Name a model and choose recipes; the line at the bottom says what the run needs. On a high
    screen the recipes are points as well: left is smaller, lower is closer to the original.
    Empty fields are left to quantize. **Matrix** is a text of the kind that the model is for:
    an importance matrix is computed from it. A **target** says what a file must keep instead of
    how it is made: kl0.02 is the smallest within that KL divergence, 1.2GB and 4.5bpw are the
    best of that size and of so many bits a weight, fits-8GB-8192 is the best that runs in 8 GB
    with 8,192 tokens of context. **LoRA** is an adapter that is merged first. **tab** takes the
    path that is suggested. What is wrong stands under its field.
    """

    @dataclass
    class Foreseen(Message):
        """``forecast`` is what the form asks for now; None when that is not a run."""

        forecast: BuildForecast | None

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._forecast: BuildForecast | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="quantize-body", can_focus=False):
            yield Group(
                "Model",
                path_field("model", "Model", "folder, .gguf file of floats, ORG/NAME", "", ".gguf"),
                path_field("out", "Into", "MODEL-built beside the model"),
                Static(id="forecast", markup=False),
            )
            yield RecipeCards(id="recipes")
            with Group("Options", id="quantize-options"):
                yield text_field("targets", "Targets", f"{TARGETS} (optional)")
                yield path_field(
                    "imatrix", "Matrix", "a text, or a ready matrix (optional)", "", ""
                )
                yield path_field("lora", "LoRA", "an adapter to merge first (optional)")
                with Horizontal(classes="form-line"):
                    yield Check("Measure quality and speed", value=True, id="measure")
                    yield Check("Build again", value=False, id="fresh")
            yield RecipeChart(id="recipe-chart")
        with Horizontal(id="quantize-foot"):
            with Vertical():
                yield Static(id="advice", markup=False)
                yield Static(id="sum", markup=False)
            yield Button("Build", variant="primary", compact=True, action="screen.build")

    def on_mount(self) -> None:
        self.query_one("#forecast").display = False
        self._advise()
        self._add_up()

    @property
    def settings(self) -> Settings:
        return Settings(
            self.text_of("model"),
            self.query_one(RecipeCards).chosen,
            self.text_of("targets"),
            out=self.text_of("out"),
            imatrix=self.text_of("imatrix"),
            lora=self.text_of("lora"),
            measure=self.query_one("#measure", Check).value,
            fresh=self.query_one("#fresh", Check).value,
        )

    # What is at the bottom

    @on(RecipeCards.Highlighted)
    def _advise(self) -> None:
        recipe = self.query_one(RecipeCards).recipe
        told = Content.assemble((recipe.name, "bold"), f"  {advice(recipe)}")
        self.query_one("#advice", Static).update(told)
        self._draw()

    def _draw(self) -> None:
        cards = self.query_one(RecipeCards)
        chart = self.query_one(RecipeChart)
        chart.show_recipes(cards.prospects, cards.chosen, cards.recipe.name)

    def _add_up(self, wrong: str = "") -> None:
        """What the chosen recipes come to; or what is ``wrong`` and belongs to no field."""
        self._draw()
        line, cards = self.query_one("#sum", Static), self.query_one(RecipeCards)
        line.set_class(bool(wrong), "bad")
        if wrong:
            line.update(f"✗ {wrong}")
            return
        count, found = len(cards.chosen), self._forecast
        parts = [f"{count} recipe{'s' * (count != 1)}"]
        if targets := len(self.settings.target_names):
            parts.append(f"{targets} target{'s' * (targets != 1)}")
        if found is not None:
            parts.append(f"{human(cards.prospects.total(cards.chosen))} of files")
            if found.disk:
                disk = f"{human(found.disk_needed)} of {human(found.disk_free)} free disk"
                parts.append(f"needs up to {disk}")
            if found.memory:
                parts.append(f"{human(found.memory_needed)} of memory")
        line.update(" · ".join(parts))

    # What is wrong

    def explain(self, wrong: Sequence[tuple[str, str]]) -> None:
        """Each text under its field; what has none at the bottom."""
        told: dict[str, str] = {}
        rest = []
        for field, text in wrong:
            for option, label in _LABELS.items():
                text = re.sub(rf"{option}(?![\w-])", label, text)
            if field in _FIELDS:
                told[field] = f"{told[field]}\n{text}" if field in told else text
            else:
                rest.append(text)
        self.refuse_all(told)
        self._add_up("; ".join(rest))

    # Looking

    @on(Input.Changed)
    @on(RecipeCards.Changed)
    @on(Check.Changed)
    def _changed(self) -> None:
        self._add_up()
        self.look_later()

    async def look(self) -> None:
        settings, facts = self.settings, self.query_one("#forecast", Static)
        wrong: Sequence[tuple[str, str]] = ()
        self._forecast, lines = None, list[str]()
        if settings.model.strip():
            try:
                if settings.from_hub:
                    facts.update("Asking the hub ...")
                    facts.display = True
                self._forecast = await asyncio.to_thread(foreseen, settings)
                wrong, lines = self._forecast.wrong, self._forecast.lines()
            except (IngotError, OSError) as error:
                wrong = (blamed(error),)
        facts.update("\n".join(lines))
        facts.display = bool(lines)
        found = self._forecast
        if found is None:
            self.query_one(RecipeCards).show_prospects(None)
        else:
            there = await asyncio.to_thread(_prospects, found)
            self.query_one(RecipeCards).show_prospects(there)
        self.explain(wrong)
        self.post_message(self.Foreseen(found))
        if found is not None and found.builder is not None:
            self.look_later(_AGAIN_S)


def blamed(error: Exception) -> tuple[str, str]:
    """The field whose value ``error`` is about, and what it says."""
    return error.field if isinstance(error, FieldError) else "model", str(error)


def foreseen(settings: Settings) -> BuildForecast:
    """For a thread of its own: the first call imports numpy and the hub's client."""
    from app.builds.forecast import foresee

    return foresee(settings)


def _prospects(found: BuildForecast) -> Prospects:
    from app.builds.prospects import prospects

    return prospects(found.source, found.out)
