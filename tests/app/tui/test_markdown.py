"""How answers are shown: line breaks, boxes of tasks, tables and formulas."""

from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from app.tui.widgets import message_view
from app.tui.widgets.markdown import plain
from app.tui.widgets.message_view import AnswerBody, Parts

LOOKS = Path(message_view.__file__).with_suffix(".tcss")
POEM = "The river is wide,\nthe boat is small,\nand nobody rows.\n\nThe end."
TABLE = """\
| Name | Price | Kind |
|:-----|------:|:----:|
| Tea  | 1.5   | a    |
| Coffee from far away | 12 | **b** |
"""


class BodyApp(App[None]):
    """One answer."""

    CSS_PATH = LOOKS

    def __init__(self, body: AnswerBody) -> None:
        super().__init__()
        self.body = body

    def compose(self) -> ComposeResult:
        yield self.body


def lines(app: App[None]) -> list[str]:
    """The screen's lines without the blanks around them, and without empty ones."""
    drawn = app.screen._compositor.render_strips()
    return [text for strip in drawn if (text := strip.text.strip())]


async def drawn(text: str, *, streamed: bool) -> list[str]:
    """``text`` as it is shown: while it streams, all but its last block ended; or as loaded."""
    body = AnswerBody(Parts() if streamed else Parts(text), ended=not streamed)
    async with BodyApp(body).run_test(size=(60, 30)) as pilot:
        if streamed:
            for end in range(0, len(text) + 1, 7):
                await body.show(Parts(text[:end]))
            await body.show(Parts(text), ended=True)
        await pilot.pause()
        return lines(pilot.app)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_poem_stays_a_poem(streamed: bool):
    assert await drawn(POEM, streamed=streamed) == POEM.replace("\n\n", "\n").split("\n")


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_table_is_aligned_and_as_wide_as_its_cells(streamed: bool):
    top, head, _, tea, coffee, bottom = await drawn(TABLE, streamed=streamed)
    assert len({len(line) for line in (top, head, tea, coffee, bottom)}) == 1
    assert head == "│ Name                 │ Price │ Kind │"
    assert tea == "│ Tea                  │   1.5 │  a   │"
    assert coffee == "│ Coffee from far away │    12 │  b   │"


async def test_the_widest_column_gives_way_in_a_narrow_window():
    wide = "| a | b |\n|---|---|\n| x | " + "word " * 30 + "|\n"
    found = await drawn(wide, streamed=False)
    assert found[3].startswith("│ x │ word word")
    assert len(found) < 10


async def test_tasks_have_boxes():
    found = await drawn("- [ ] row\n- [x] fish\n- [not a box]\n", streamed=False)
    assert found == ["• ☐ row", "• ☑ fish", "• [not a box]"]


async def test_formulas_are_text_and_money_is_not_a_formula():
    text = r"It is \(x_1^2 \cdot 3\), so $\frac{a}{2b}$. It costs $5 and $6 now." + "\n"
    assert await drawn(text, streamed=False) == [
        "It is x₁² · 3, so a/(2b). It costs $5 and $6 now."
    ]


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\text{of} = e^{\frac{1}{2}} \left( 1 \right)", "of = e^(1/2) ( 1 )"),
        (r"\frac{-b \pm \sqrt{b^2 - 4ac}}{2a}", "(-b ± √(b² - 4ac))/(2a)"),
        (r"x^{10} \leq 2^{n+1}", "x¹⁰ ≤ 2ⁿ⁺¹"),
        (r"\sum_{k=1}^{n} k", "∑ₖ₌₁ⁿ k"),
        (r"\unknown{a} 50\%", r"\unknown{a} 50%"),
    ],
)
def test_what_is_known_of_a_formula_becomes_text(formula: str, text: str):
    assert plain(formula) == text


def test_an_endless_formula_ends():
    assert plain("{" * 2000 + "^" * 2000)
