"""All files' answers to one prompt of a comparison, beside each other."""

from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from app.compare.page import place_of
from app.compare.records import Contender, Parting, Side, SideFigures, SideState
from app.compare.results import PromptResult, Results
from app.tui.widgets.compare_panes import ComparePane, ComparePanes
from app.tui.widgets.frame import ModeScreen


class AnswersScreen(ModeScreen):
    """One of a report's rows, and from there the others."""

    MODE = "compare"
    HELP = """
    All answers to one prompt; **▶** shows where one parts from the first file's.
    **[answers.earlier ←]** and **[answers.later →]** show the prompts before and after it.
    """
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = "compare.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Earlier", id="answers.earlier", priority=True),
        Binding("right", "turn(1)", "Later", id="answers.later", priority=True),
        Binding("escape", "dismiss", "Back", id="answers.back"),
    ]

    def __init__(self, results: Results, at: int) -> None:
        super().__init__()
        self._results, self._at = results, at

    def contents(self) -> ComposeResult:
        with VerticalScroll(classes="asked pane", can_focus=False):
            yield Static(id="asked-text", markup=False)
        labels = enumerate(file.label for file in self._results.files)
        yield ComparePanes(*(ComparePane(label, number) for number, label in labels))

    def on_mount(self) -> None:
        self.query_one(ComparePanes).lay_out()
        self._show()

    def action_turn(self, step: int) -> None:
        """To another row."""
        self._at = (self._at + step) % len(self._results.rows)
        self._show()

    def _show(self) -> None:
        row, results = self._results.rows[self._at], self._results
        box = self.query_one(".asked")
        box.border_title = f"Prompt {self._at + 1:,} of {len(results.rows):,}"
        expected = f"\n\nExpected: {' or '.join(row.expected)}" if row.expected else ""
        self.query_one("#asked-text", Static).update(row.prompt + expected)
        speeds = [told.decode_tps for told in row.answers]
        fastest = max(filter(None, speeds), default=None)
        partings = [parting_of(row, number) for number in range(1, len(results.files))]
        earliest = min(filter(None, partings), key=lambda p: p.places[0], default=None)
        for number, pane in enumerate(self.query(ComparePane)):
            parting = partings[number - 1] if number else earliest
            side = side_of(row, number, results.files[number].label)
            pane.show(side, parting, first=not number, fastest=fastest, base=speeds[0])


def side_of(row: PromptResult, number: int, label: str) -> Side:
    """A file's answer as panes show it."""
    told = row.answers[number]
    figures = SideFigures(
        completion_tokens=told.tokens,
        ttft_s=told.ttft_s,
        decode_tps=told.decode_tps,
        finish_reason=told.finish_reason,
    )
    state = SideState.FAILED if told.error else SideState.DONE
    return Side(Contender(label), label, state, text=told.text, figures=figures, error=told.error)


def parting_of(row: PromptResult, number: int) -> Parting | None:
    """Where a later file's answer parts from the first one's: a word of each stands there."""
    at = row.places[number - 1]
    if at is None:
        return None
    mine, theirs = (place_of(row.answers[n].text, at) for n in (0, number))
    return Parting(row.parts[number - 1] or 0, mine, theirs, (at, at))
