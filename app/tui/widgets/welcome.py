"""The welcome of an empty chat: the loaded model, and a few ways to begin."""

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Center, Grid, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.chat.host import EngineHost, HostState
from app.tui.keys import bind, quiet, told
from app.tui.textual_patches import Plain
from quantize.disk import human

_MARK = (" ▗▟█████▙▖ ", "▟█████████▙")
_WORD = ("█ █▄ █ █▀▀▀ █▀▀█ ▀█▀", "█ █ ▀█ █▄▄█ █▄▄█  █ ")
_LEAST_ROWS = 15  # with the mark
# What a card says, and what it puts into the prompt.
_STARTERS = (
    ("Explain an idea simply", "Explain quantization of language models to a programmer."),
    ("Write some code", "Write a Python function that merges overlapping intervals."),
    ("Compare in a table", "Compare TCP, UDP and QUIC in a table."),
    ("Sum up a text", "Sum up the text below in three points.\n\n"),
)
_BEGINNINGS = (  # for a model without a chat template, which goes on with what one says
    ("Begin a story", "Once upon a time"),
    ("Begin a function", "def merge_intervals(intervals):\n"),
    ("Begin a definition", "Quantization of a language model is"),
    ("Begin a list", "Five things to see in Oslo:\n1."),
)
_HINTS = (
    ("[chat.complete tab]", "pick one"),
    ("[chat.models ctrl+t]", "model"),
    ("[chat.chats ctrl+o]", "earlier chats"),
    ("[app.help F1]", "help"),
)


class Starter(Static, can_focus=True):
    """A way to begin: taken, its text is in the prompt."""

    HELP = """
    A way to begin. **[starter.take enter]**, or a click, puts it into the prompt, where it can be
    changed before it is sent. **1** to **4** take them by number, arrows go to the others.
    """
    BINDINGS = [
        bind("enter,space", "starter.take", "Take"),
        quiet("left", "starter.left", action="move(-1)"),
        quiet("right", "starter.right", action="move(1)"),
        quiet("up", "starter.up", action="move(-2)"),
        quiet("down", "starter.down", action="move(2)"),
        quiet("1", "starter.first", action="nth(1)"),
        quiet("2", "starter.second", action="nth(2)"),
        quiet("3", "starter.third", action="nth(3)"),
        quiet("4", "starter.fourth", action="nth(4)"),
    ]

    @dataclass
    class Taken(Message):
        """A click or a key has taken it."""

        text: str

    def __init__(self, number: int) -> None:
        super().__init__(classes="pane")
        self.number = number
        self.text = ""

    def say(self, title: str, text: str) -> None:
        """Say what the card is, and keep the text that it begins with."""
        self.text = text
        self.update(Content.assemble((f"{self.number} ", "$text-muted"), title))

    def action_take(self) -> None:
        self.post_message(self.Taken(self.text))

    def on_click(self) -> None:
        self.action_take()

    def action_move(self, step: int) -> None:
        self.screen.query(Starter)[(self.number - 1 + step) % len(_STARTERS)].focus()

    def action_nth(self, number: int) -> None:
        self.screen.query(Starter)[number - 1].action_take()


class Choose(Plain):
    """While no model is loaded: a click lists them."""

    async def on_click(self) -> None:
        await self.run_action("screen.models")


class Welcome(Vertical):
    """``show`` it what is loaded."""

    def compose(self) -> ComposeResult:
        with Center():
            yield Static(_drawn(), classes="mark")
        yield Plain(classes="model")
        with Center(), Grid(classes="starters"):
            for number in range(1, len(_STARTERS) + 1):
                yield Starter(number)
        with Center():
            yield Choose(classes="choose")
        yield Plain(classes="hints")

    def on_mount(self) -> None:
        self.query_one(Choose).update(told(self, "[chat.models ctrl+t]  Choose a model"))

    def fit(self, rows: int) -> None:
        """There is room for so many."""
        self.set_class(rows < _LEAST_ROWS, "-low")

    def show(self, host: EngineHost, note: str) -> None:
        """``note``: what the engine is at, where there is no model yet."""
        none = host.state in (HostState.EMPTY, HostState.FAILED)
        self.query_one(".starters").display = not none
        self.query_one(Choose).display = none
        ways = _BEGINNINGS if host.plain else _STARTERS
        for starter, way in zip(self.query(Starter), ways, strict=True):
            starter.say(*way)
        self.query_one(".model", Static).update(_about(host, note))
        hints = (
            Content.assemble((told(self, key), "bold"), (f" {what}", "$text-muted"))
            for key, what in _HINTS[none:]
        )
        self.query_one(".hints", Static).update(Content("   ").join(hints))


def _about(host: EngineHost, note: str) -> Content:
    match host.state:
        case HostState.READY:
            first, more = (host.label, "bold"), " · ".join(_facts(host))
        case HostState.LOADING:
            first, more = (f"{note[:1].upper()}{note[1:]}", "$text-warning"), ""
        case HostState.EMPTY:
            first, more = ("No model is loaded.", ""), "A file, a folder or one of your library."
        case HostState.FAILED:
            first, more = ("The model could not be loaded.", "$text-error"), host.error or ""
    return Content("\n").join([Content.styled(*first), Content.styled(more, "$text-muted")])


def _drawn() -> Content:
    lines = (
        Content.assemble((mark, "$primary"), "  ", (word, "bold $text"))
        for mark, word in zip(_MARK, _WORD, strict=True)
    )
    return Content("\n").join(lines)


def _facts(host: EngineHost) -> list[str]:
    """Size, quality, context and what computes, as far as they are known."""
    found = []
    if host.choice is not None:
        found.append(human(host.choice.file.nbytes))
    if host.quality:
        found.append(host.quality)
    if host.engine is not None:
        found.append(f"context of {host.engine.context:,} tokens")
    return [*found, host.details]
