"""Which of two answers is better, by one who is not told whose they are."""

from pathlib import PurePath
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, ProgressBar, Static

from app.compare.report import votes_line, with_votes
from app.compare.results import Ballot, BlindPair, Sided
from app.tui.widgets.frame import ModeScreen

_BUTTONS = {
    Sided.LEFT: "← Left is better",
    Sided.TIE: "Tie (=)",
    Sided.SKIP: "Skip (k)",
    Sided.RIGHT: "Right is better →",
}


class BlindScreen(ModeScreen):
    """The pairs of a ballot that were not judged yet; at the end what the votes say."""

    MODE = "compare"
    HELP = """
    Two answers to the same prompt, in an order and on sides that chance decides; their files are
    named at the end. **[blind.left ←]** or **[blind.right →]** is better, **[blind.tie =]** is a
    tie, **[blind.skip k]** says nothing, **[blind.undo ctrl+z]** takes the last vote back. Every
    vote is kept: you can leave and go on later.
    """
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = "compare.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "vote('left')", "Left", id="blind.left", priority=True),
        Binding("right", "vote('right')", "Right", id="blind.right", priority=True),
        Binding("equals_sign", "vote('tie')", "Tie", id="blind.tie", priority=True),
        Binding("k", "vote('skip')", "Skip", id="blind.skip", priority=True),
        Binding("ctrl+z", "undo", "Undo", id="blind.undo", priority=True),
        Binding("escape", "dismiss", "Back", id="blind.back"),
    ]

    def __init__(self, ballot: Ballot) -> None:
        super().__init__()
        self.ballot = ballot
        self.pair: BlindPair | None = None

    def contents(self) -> ComposeResult:
        with Horizontal(id="blind-progress"):
            yield ProgressBar(len(self.ballot.pairs), show_eta=False, show_percentage=False)
            yield Static(id="blind-said", markup=False)
        with VerticalScroll(classes="asked pane", can_focus=False):
            yield Static(id="asked-text", markup=False)
        with Horizontal(id="blind-pair"):
            for side in (Sided.LEFT, Sided.RIGHT):
                with VerticalScroll(classes="pane", id=f"blind-{side}") as box:
                    box.border_title = side.value.title()
                    yield Static(classes="answer", markup=False)
        with Horizontal(id="blind-bar"):
            for said, label in _BUTTONS.items():
                button = Button(label, compact=True, id=f"vote-{said}")
                # While one looks pressed it takes no click: two in a row are two votes.
                button.active_effect_duration = 0.0
                yield button
        with Vertical(classes="pane", id="blind-result") as result:
            result.border_title = "Which you preferred"
            yield Static(id="blind-votes", markup=False)

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        ballot = self.ballot
        self.pair = pair = ballot.next
        self.query_one(ProgressBar).update(progress=ballot.done)
        said = f"{ballot.done:,} of {len(ballot.pairs):,} judged"
        self.query_one("#blind-said", Static).update(said)
        for name in (".asked", "#blind-pair", "#blind-bar"):
            self.query_one(name).display = pair is not None
        result = self.query_one("#blind-result")
        result.display = pair is None
        if pair is None:
            results = with_votes(ballot.results, ballot)
            lines = [votes_line(votes, results) for votes in results.votes]
            self.query_one("#blind-votes", Static).update("\n".join(lines))
        else:
            row = ballot.results.rows[pair.row]
            self.query_one("#asked-text", Static).update(row.prompt)
            texts = [row.answers[number].text for number in (0, pair.other)]
            sides = zip(
                ("#blind-left", "#blind-right"),
                reversed(texts) if pair.swapped else texts,
                strict=True,
            )
            for name, text in sides:
                box = self.query_one(name)
                box.query_one(Static).update(text)
                box.scroll_home(animate=False)
            self.query_one("#blind-left").focus()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "undo":
            return bool(self.ballot.votes)
        return self.pair is not None if action == "vote" else True

    def action_vote(self, said: str) -> None:
        """Keep it, and go on to the next pair."""
        if self.pair is None:
            return
        try:
            self.ballot.say(self.pair, Sided(said))
        except OSError as error:
            self.notify(f"Not kept: {error}", severity="error", markup=False)
            return
        self._show()

    def action_undo(self) -> None:
        """Ask about the last pair once more."""
        try:
            self.ballot.take_back()
        except OSError as error:
            self.notify(f"Not kept: {error}", severity="error", markup=False)
        self._show()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.action_vote(str(event.button.id).removeprefix("vote-"))
