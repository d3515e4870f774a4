"""The recipes as cards, by runtime: what each would make of the model at hand."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Collapsible, Label, Static

from app.builds.prospects import RUNTIMES, Prospect, Prospects, bare_prospects
from app.builds.settings import DEFAULT_RECIPES, offered
from quantize.recipes import PRESETS, Recipe

_WIDTH = 32  # columns that a card wants, with the gap beside it
_MARK = "✓ "
_FITS = {True: "fits", False: "too big", None: ""}


class RecipeCard(Static):
    """One recipe. A click chooses it, or leaves it out again."""

    class Clicked(Message):
        """By the mouse."""

        def __init__(self, card: "RecipeCard") -> None:
            super().__init__()
            self.card = card

    def __init__(self, prospect: Prospect) -> None:
        super().__init__(id=f"card-{prospect.recipe.name}", classes="card")
        self.prospect = prospect
        self.chosen = False
        self.fits: bool | None = None

    @property
    def recipe(self) -> Recipe:
        return self.prospect.recipe

    @property
    def marked_title(self) -> str:
        return f"{_MARK if self.chosen else ''}{self.recipe.name}"

    def show(self, prospect: Prospect, fits: bool | None, *, chosen: bool) -> None:
        """What is known by now."""
        self.prospect, self.fits, self.chosen = prospect, fits, chosen
        self.set_class(chosen, "-chosen")
        self.set_class(fits is False, "-large")
        self.border_title = Content(self.marked_title)
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

    def on_click(self) -> None:
        self.post_message(self.Clicked(self))


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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "choose", "Choose", id="recipes.tick"),
        Binding("left", "step(-1)", "Card before", id="recipes.left", show=False),
        Binding("right", "step(1)", "Card after", id="recipes.right", show=False),
        Binding("up", "line(-1)", "Card above", id="recipes.up", show=False),
        Binding("down", "line(1)", "Card below", id="recipes.down", show=False),
        Binding("home", "end(0)", "First card", id="recipes.first", show=False),
        Binding("end", "end(-1)", "Last card", id="recipes.last", show=False),
    ]

    class Changed(Message):
        """Another choice."""

    class Highlighted(Message):
        """Another card is under the cursor."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen = set(DEFAULT_RECIPES)
        self.prospects = bare_prospects()
        self._cursor = RECIPE_ORDER[0][0].name

    def compose(self) -> ComposeResult:
        for runtime, recipes in zip(RUNTIMES.values(), RECIPE_ORDER, strict=True):
            yield Label(runtime, classes="cards-title")
            yield Container(*self._made(recipes), classes="cards")
        more = Container(classes="cards", id="more-cards")
        title = f"{len(_FURTHER)} further types: smaller ones, older ones, and floats"
        yield Collapsible(more, title=title, id="more-recipes")

    def _made(self, recipes: Iterable[Recipe]) -> list[RecipeCard]:
        return [RecipeCard(self.prospects.recipes[recipe.name]) for recipe in recipes]

    def on_mount(self) -> None:
        self._show()

    def on_resize(self, event: events.Resize) -> None:
        columns = max(1, (event.size.width + 1) // _WIDTH)
        for grid in self.query(".cards"):
            grid.styles.grid_size_columns = columns

    # What is chosen

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names, in the order of `quantize recipes`."""
        return tuple(r.name for r in offered() if r.name in self._chosen)

    def choose(self, names: Sequence[str]) -> None:
        """These and no others."""
        self._chosen = set(names)
        self._show()
        self.post_message(self.Changed())

    def show_prospects(self, prospects: Prospects | None) -> None:
        """What the cards would make of a model; None without one."""
        self.prospects = prospects or bare_prospects()
        self._show()

    def _show(self) -> None:
        for card in self.query(RecipeCard):
            name = card.recipe.name
            prospect = self.prospects.recipes[name]
            card.show(prospect, self.prospects.fits(name), chosen=name in self._chosen)
            card.set_class(name == self._cursor, "-cursor")

    def action_choose(self) -> None:
        self._chosen ^= {self._cursor}
        self._show()
        self.post_message(self.Changed())

    @on(RecipeCard.Clicked)
    def _clicked(self, event: RecipeCard.Clicked) -> None:
        event.stop()
        self.focus(scroll_visible=False)
        self._go(event.card)
        self.action_choose()

    # The card under the cursor

    @property
    def recipe(self) -> Recipe:
        return self.prospects.recipes[self._cursor].recipe

    @property
    def _cards(self) -> list[RecipeCard]:
        """Those that can be seen."""
        open_ = not self.query_one(Collapsible).collapsed
        further = set(self.query_one("#more-cards").query(RecipeCard))
        return [card for card in self.query(RecipeCard) if open_ or card not in further]

    def _at(self, cards: list[RecipeCard]) -> int:
        return next((i for i, card in enumerate(cards) if card.recipe.name == self._cursor), 0)

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


def _usual(fmt: str) -> list[Recipe]:
    return [recipe for recipe in offered() if recipe.format == fmt and recipe.name in PRESETS]


RECIPE_ORDER = tuple(_usual(fmt) for fmt in RUNTIMES)
_FURTHER = [recipe for recipe in offered() if recipe.name not in PRESETS]
