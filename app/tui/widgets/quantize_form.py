"""The form of a build: the model, the recipes as cards and points, a few options, and what the run
will need."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Collapsible, Input, Label, Static

from app.builds.prospects import (
    RUNTIMES,
    BuildForecast,
    Prospect,
    Prospects,
    bare_prospects,
    foresee,
    prospects,
)
from app.builds.run import DEFAULT_RECIPES, TARGETS, FieldError, Settings, offered
from app.tui.keys import bind, quiet
from app.tui.textual_patches import Plain
from app.tui.widgets.chart import Axis, Mark
from app.tui.widgets.form import Check, Form, Group, path_field, text_field
from app.tui.widgets.quantize_files import DistanceChart
from quantize.disk import human
from quantize.recipes import PRESETS, Recipe
from runtimes.errors import IngotError

_WIDTH = 32  # columns that a card wants, with the gap beside it
_FITS = {True: "fits", False: "too big", None: ""}


class RecipeCard(Static):
    """One recipe. A click chooses it, or leaves it out again."""

    def __init__(self, prospect: Prospect) -> None:
        super().__init__(id=f"card-{prospect.recipe.name}", classes="card")
        self.prospect = prospect

    @property
    def recipe(self) -> Recipe:
        return self.prospect.recipe

    def show(self, prospect: Prospect, fits: bool | None, *, chosen: bool, current: bool) -> None:
        """Show what is known by now."""
        self.prospect = prospect
        self.update_classes({"-chosen": chosen, "-large": fits is False, "-cursor": current})
        self.border_title = Content(f"{'✓ ' if chosen else ''}{self.recipe.name}")
        told = ("built" if prospect.there else "", _FITS[fits])
        self.border_subtitle = " · ".join(filter(None, told))
        self.refresh()

    def render(self) -> Content:
        left, right = self.prospect.size_text, self.prospect.bits_text
        room = max(self.content_size.width - len(left) - len(right), 1)
        quality = self.prospect.quality_text
        if self.recipe.needs_imatrix:
            quality = f"{quality.removesuffix(' on Llama-3-8B')}, needs a matrix"
        return Content.assemble((left, "bold"), " " * room, right, "\n", (quality, "$text-muted"))


class RecipeCards(Vertical, can_focus=True):
    """The cards of both runtimes; the less usual types are folded away. The arrows move between
    cards, and space or enter chooses the one that they are on."""

    BINDING_GROUP_TITLE = "Recipes"
    HELP = """
    A recipe is one kind of file. The **arrows** move between the cards, **space**, **enter** or a
    click chooses one: chosen cards have a ✓. The four that are chosen at first are what most
    people want: 4 and 8 bits for llama.cpp and for ONNX Runtime.

    Once a model is named, a card says what this very model will take: the size of the file, bits
    a weight with the tensors counted that need a larger type, and whether it fits into the free
    memory with a conversation of 4,096 tokens. The distance to the original is what was measured
    in the folder before; else what llama.cpp has published for the type on another model.
    """
    BINDINGS = [
        bind("space,enter", "recipes.tick", "Choose", action="choose"),
        quiet("left", "recipes.left", "Card before", action="step(-1)"),
        quiet("right", "recipes.right", "Card after", action="step(1)"),
        quiet("up", "recipes.up", "Card above", action="line(-1)"),
        quiet("down", "recipes.down", "Card below", action="line(1)"),
        quiet("home", "recipes.first", "First card", action="end(0)"),
        quiet("end", "recipes.last", "Last card", action="end(-1)"),
    ]

    class Changed(Message):
        """Another choice."""

    class Highlighted(Message):
        """Another card is under the cursor."""

    def __init__(self) -> None:
        super().__init__(id="recipes")
        self._chosen = set(DEFAULT_RECIPES)
        self.prospects = bare_prospects()
        self._cursor = _USUAL[0].name

    def compose(self) -> ComposeResult:
        for fmt, runtime in RUNTIMES.items():
            yield Label(runtime, classes="cards-title")
            recipes = (recipe for recipe in _USUAL if recipe.format == fmt)
            yield Container(*self._made(recipes), classes="cards usual")
        more = Container(classes="cards", id="more-cards")
        title = f"{len(_FURTHER)} further types: smaller ones, older ones, and floats"
        yield Collapsible(more, title=title, id="more-recipes")

    def _made(self, recipes: Iterable[Recipe]) -> list[RecipeCard]:
        return [RecipeCard(self.prospects.recipes[recipe.name]) for recipe in recipes]

    def on_resize(self, event: events.Resize) -> None:
        self._show()
        columns = max(1, (event.size.width + 1) // _WIDTH)
        for grid in self.query(".cards"):
            grid.styles.grid_size_columns = columns

    # What is chosen

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names, in the order of `quantize recipes`."""
        return tuple(r.name for r in offered() if r.name in self._chosen)

    def choose(self, names: Iterable[str]) -> None:
        """Choose these recipes, and no others."""
        self._chosen = set(names)
        self._show()
        self.post_message(self.Changed())

    def show_prospects(self, prospects: Prospects | None) -> None:
        """Show what the cards would make of a model; None without one."""
        self.prospects = prospects or bare_prospects()
        self._show()

    def _show(self) -> None:
        for card in self.query(RecipeCard):
            name, found = card.recipe.name, self.prospects
            chosen, current = name in self._chosen, name == self._cursor
            card.show(found.recipes[name], found.fits(name), chosen=chosen, current=current)

    def action_choose(self) -> None:
        self.choose(self._chosen ^ {self._cursor})

    def on_click(self, event: events.Click) -> None:
        if isinstance(event.widget, RecipeCard):
            self.focus(scroll_visible=False)
            self._go(event.widget)
            self.action_choose()

    # The card under the cursor

    @property
    def recipe(self) -> Recipe:
        return self.prospects.recipes[self._cursor].recipe

    @property
    def _cards(self) -> list[RecipeCard]:
        """Cards that can be seen."""
        seen = "RecipeCard" if not self.query_one(Collapsible).collapsed else ".usual RecipeCard"
        return list(self.query(seen).results(RecipeCard))

    def _at(self, cards: list[RecipeCard]) -> int:
        return next((i for i, card in enumerate(cards) if card.has_class("-cursor")), 0)

    def _go(self, card: RecipeCard) -> None:
        self._cursor = card.recipe.name
        self._show()
        card.scroll_visible(animate=False)
        self.post_message(self.Highlighted())

    def action_step(self, by: int) -> None:
        cards = self._cards
        self._go(cards[min(max(self._at(cards) + by, 0), len(cards) - 1)])

    def action_end(self, at: int) -> None:
        self._go(self._cards[at])

    def action_line(self, by: int) -> None:
        """The nearest card of the next row, which may be another runtime's."""
        cards = self._cards
        here = cards[self._at(cards)].region
        beyond = [card for card in cards if (card.region.y - here.y) * by > 0]
        if beyond:
            near = min(beyond, key=lambda c: (abs(c.region.y - here.y), abs(c.region.x - here.x)))
            self._go(near)

    @on(Collapsible.Expanded)
    async def _unfolded(self) -> None:
        """The further cards are made when they are first asked for."""
        grid = self.query_one("#more-cards")
        if not grid.children:
            await grid.mount_all(self._made(_FURTHER))
            self._show()


_USUAL = [recipe for recipe in offered() if recipe.name in PRESETS]
_FURTHER = [recipe for recipe in offered() if recipe.name not in PRESETS]


# Signs of distances, by whether they were measured here, and what they say.
_SIGNS = {True: ("●", "measured here"), False: ("○", "what llama.cpp publishes of Llama-3-8B")}


class RecipeChart(DistanceChart):
    """The chosen ones stand out; one whose distance nobody has measured has no point. Without a
    model the sizes are bits a weight."""

    def show_recipes(self, found: Prospects, chosen: Sequence[str], current: str) -> None:
        """``current`` is under the cursor."""
        known = {name: one for name, one in found.recipes.items() if one.kl}
        unit = 1e6 * self.unit((one.bytes or 0) / 1e6 for one in known.values())
        sized = any(one.bytes for one in known.values())
        if not sized:
            self.x = Axis("bits a weight")
        marks, signs = [], set()
        # Who comes first has its name beside it where room is scarce.
        order = sorted(known, key=lambda n: (n != current, n not in chosen, n not in PRESETS))
        for name in order:
            one, label = known[name], f"[{name}]" if name == current else name
            size = (one.bytes or 0) / unit if sized else one.recipe.bits_per_weight
            sign = _SIGNS[one.measured is not None]
            signs.add(sign)
            color = "$text-primary" if name in chosen else "$text-muted"
            marks.append(Mark(size, one.kl or 0.0, label, sign[0], color))
        self.border_subtitle = "   ".join(" ".join(s) for s in _SIGNS.values() if s in signs)
        self.show((), marks)


_AGAIN_S = 2.0  # while another run builds there: its files appear as they are finished
# Options of the command as the form calls them.
_LABELS = {
    "--out": "“Into”",
    "--imatrix": "“Matrix”",
    "--to gguf": "recipes of llama.cpp",
    "without --no-measure": "tick “Measure quality and speed”",
}
_FIELDS = ("model", "out", "targets", "imatrix", "lora")


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

    def __init__(self) -> None:
        super().__init__(id="quantize-form")
        self._cards = RecipeCards()
        self._forecast: BuildForecast | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="quantize-body", can_focus=False):
            yield Group(
                "Model",
                path_field("model", "Model", "folder, .gguf file of floats, ORG/NAME", "", ".gguf"),
                path_field("out", "Into", "MODEL-built beside the model"),
                Plain(id="forecast"),
            )
            yield self._cards
            with Group("Options", id="quantize-options"):
                yield text_field("targets", "Targets", f"{TARGETS} (optional)")
                yield path_field(
                    "imatrix", "Matrix", "a text, or a ready matrix (optional)", "", ""
                )
                yield path_field("lora", "LoRA", "an adapter to merge first (optional)")
                with Horizontal(classes="form-line"):
                    yield Check("Measure quality and speed", value=True, id="measure")
                    yield Check("Build again", value=False, id="fresh")
            yield RecipeChart("recipe-chart")
        with Horizontal(id="quantize-foot"):
            with Vertical():
                yield Plain(id="advice")
                yield Plain(id="sum")
            yield Button("Build", variant="primary", compact=True, action="screen.build")

    def on_mount(self) -> None:
        self.query_one("#forecast").display = False
        self._add_up()

    @property
    def settings(self) -> Settings:
        texts = {name: self.text_of(name) for name in _FIELDS}
        measure, fresh = (self.query_one(name, Check).value for name in ("#measure", "#fresh"))
        return Settings(recipes=self._cards.chosen, measure=measure, fresh=fresh, **texts)

    # What is at the bottom

    @on(RecipeCards.Highlighted)
    def _draw(self) -> None:
        """Say what the recipe under the cursor is for, and show it among the others."""
        cards, recipe = self._cards, self._cards.recipe
        told = recipe.advice + ("; needs a text for the matrix" if recipe.needs_imatrix else "")
        self.query_one("#advice", Static).update(
            Content.assemble((recipe.name, "bold"), f"  {told}")
        )
        self.query_one(RecipeChart).show_recipes(cards.prospects, cards.chosen, recipe.name)

    def _add_up(self, wrong: str = "") -> None:
        """Say what the chosen recipes come to; or what is ``wrong`` and belongs to no field."""
        self._draw()
        line, cards = self.query_one("#sum", Static), self._cards
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
                parts.append(
                    f"needs up to {human(found.disk)} of {human(found.disk_free)} free disk"
                )
            if found.memory:
                parts.append(f"{human(found.memory)} of memory")
        line.update(" · ".join(parts))

    # What is wrong

    def explain(self, wrong: Sequence[tuple[str, str]]) -> None:
        """Each text under its field; what has none at the bottom."""
        told: defaultdict[str, list[str]] = defaultdict(list)
        for field, text in wrong:
            for option, label in _LABELS.items():
                text = re.sub(rf"{option}(?![\w-])", label, text)
            told[field if field in _FIELDS else ""].append(text)
        rest = told.pop("", [])
        self.refuse_all({field: "\n".join(texts) for field, texts in told.items()})
        self._add_up("; ".join(rest))

    # Looking

    @on(Input.Changed)
    @on(RecipeCards.Changed)
    @on(Check.Changed)
    def _changed(self) -> None:
        self._add_up()
        self.look_later()

    async def look(self) -> None:
        settings, facts = self.settings, self.query_one("#forecast", Plain)
        wrong: Sequence[tuple[str, str]] = ()
        self._forecast, lines = None, list[str]()
        if settings.model.strip():
            try:
                if settings.from_hub:
                    facts.say("Asking the hub ...")
                self._forecast = await asyncio.to_thread(foresee, settings)
                wrong, lines = self._forecast.wrong, self._forecast.lines()
            except (IngotError, OSError) as error:
                wrong = (blamed(error),)
        facts.say("\n".join(lines))
        found, there = self._forecast, None
        if found is not None:
            there = await asyncio.to_thread(prospects, found.source, found.out)
        self._cards.show_prospects(there)
        self.explain(wrong)
        self.post_message(self.Foreseen(found))
        if found is not None and found.builder is not None:
            self.look_later(_AGAIN_S)


def blamed(error: Exception) -> tuple[str, str]:
    """The field whose value ``error`` is about, and what it says."""
    return error.field if isinstance(error, FieldError) else "model", str(error)
