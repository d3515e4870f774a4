"""Panels over a screen, the keys at their bottom, and what every screen asks: a line, yes or no,
one of a list."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.style import Style
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.answering import Permission
from app.chat.budget import TokenBudget, WayOut
from app.tools.calls import ToolCall
from app.tui.keys import bind, offered, shown
from app.tui.modes import Styled
from app.tui.textual_patches import Plain
from app.tui.widgets.prompt import Line
from runtimes.untrusted import visible

_GAP = 3  # cells between two keys

# Of a key that acts before what the focused widget does with it.
bind_first = partial(bind, priority=True)


class KeyHints(Static):
    """Keys that work now in the dialog, without those of the whole app."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self._say())

    def on_resize(self, event: events.Resize) -> None:
        self._say()

    def _say(self) -> None:
        lines = [Content()]
        for hint in self._hints():
            longer = lines[-1] + Content(" " * _GAP) + hint if lines[-1] else hint
            if lines[-1] and longer.cell_length > self.content_size.width:
                lines.append(hint)
            else:
                lines[-1] = longer
        self.update(Content("\n").join(lines))

    def _hints(self) -> list[Content]:
        """First those of the focused widget, then those of the screen in the order in which it
        declares them."""
        screen = self.screen
        classes = [one.__dict__.get("BINDINGS", []) for one in type(screen).__mro__]
        declared = [one.id for found in classes for one in Binding.make_bindings(found)]
        helps = any(node.HELP for node in (screen.focused or screen).ancestors_with_self)
        self._does: dict[str, tuple[str, DOMNode]] = {}
        found: list[tuple[int, Content]] = []
        for node, binding, _, _ in offered(screen):
            id = binding.id or ""
            if not id or (node is self.app and not (id == "app.help" and helps)):
                continue
            place = declared.index(id) if id in declared else -1
            if id == "app.help" or id.endswith(".leave"):  # the way back, then help
                place = len(declared) + (id == "app.help")
            hint = Content.assemble(
                (shown(binding.key), "bold $text-primary"), f" {binding.description}"
            )
            found.append((place, hint.stylize(Style.from_meta({"binding": id}))))
            self._does[id] = binding.action, node
        return [hint for _, hint in sorted(found, key=itemgetter(0))]

    async def on_click(self, event: events.Click) -> None:
        """Do what the key does, whatever it means where one types."""
        if (does := self._does.get(event.style.meta.get("binding", ""))) is not None:
            await self.app.run_action(*does)


Result = TypeVar("Result")


class Panel(ModalScreen[Result | None], Styled[Result | None], Generic[Result]):
    """A box in the middle: a title in its border, the ``contents``, below them what is wrong, and
    at the bottom the keys. Ends with None when it was left: by esc, or by a click beside the box
    where nothing is lost."""

    HEADING = ""
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-tall")]
    BINDINGS = [
        bind("escape", "panel.leave", "Back"),
    ]

    def __init__(self, heading: str = "") -> None:
        super().__init__(classes="panel")
        self._heading = heading or self.HEADING

    def compose(self) -> ComposeResult:
        self.begin()
        with Vertical(classes="box") as box:
            box.border_title = Content(self._heading)
            yield from self.contents()
            yield Plain(classes="problem field-error")
            yield KeyHints(classes="keys")

    @abstractmethod
    def contents(self) -> ComposeResult:
        """Compose the inside of the box."""

    def complain(self, text: str = "") -> None:
        """Say what is wrong, or with no text that nothing is any more."""
        problem = self.query_one(".problem", Static)
        problem.update(text)
        problem.set_class(bool(text), "-shown")

    def unsaved(self) -> bool:
        """Whether leaving would lose what was typed here: a click beside the box does nothing
        then."""
        return False

    async def on_click(self, event: events.Click) -> None:
        beside = self.get_widget_at(*event.screen_offset)[0] is self
        if beside and not self.unsaved():
            await self.run_action("leave")

    def action_leave(self) -> None:
        self.dismiss(None)


class ListPanel(Panel[Result]):
    """A panel with a line to search in above a list. The line keeps the cursor: ``list_keys`` move
    through the list, which has the id ``LIST``."""

    LIST = ""

    def action_list(self, action: str) -> None:
        getattr(self.query_one(self.LIST), f"action_{action}")()


_LIST_KEYS = {
    "up": "cursor_up",
    "down": "cursor_down",
    "pageup": "page_up",
    "pagedown": "page_down",
    "home": "first",
    "end": "last",
}


def list_keys(area: str, *, priority: bool = False) -> Iterator[Binding]:
    """Make the bindings of a ``ListPanel``. Home and end are the line's while it has text."""
    for key, action in _LIST_KEYS.items():
        ends = key in ("home", "end")
        yield bind(
            f"{key},ctrl+{key}" if ends else key,
            f"{area}.{key}",
            action=f"list('{action}')",
            show=False,
            priority=priority and not ends,
        )


class AskScreen(Panel[str]):
    """Ends with one line of text. An empty one is not taken; nor is one of which ``wrong`` says
    what is wrong with it."""

    BINDINGS = [
        bind_first("enter", "ask.take", "OK"),
    ]

    def __init__(
        self,
        title: str,
        text: str = "",
        placeholder: str = "",
        wrong: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__(title)
        self._line = Line(text, placeholder=placeholder, id="text")
        self._text, self._wrong = text, wrong

    def contents(self) -> ComposeResult:
        yield self._line

    def on_mount(self) -> None:
        self._line.focus()

    @on(Input.Changed)
    def _mended(self) -> None:
        self.complain()

    def unsaved(self) -> bool:
        return self._line.value != self._text

    def action_take(self) -> None:
        if text := self._line.value.strip():
            if wrong := self._wrong(text):
                self.complain(wrong)
            else:
                self.dismiss(text)


class ConfirmScreen(Panel[bool]):
    """Ends with whether ``question`` was answered by ``yes``. The cursor starts on the way back."""

    HEADING = "Please confirm"
    BINDINGS = [
        bind("n", "confirm.no", "Back", action="leave", show=False),
        bind("y", "confirm.yes", "Yes", action="dismiss(True)"),
        bind("left,right", "confirm.other", action="app.focus_next", show=False),
    ]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self._question, self._yes = question, yes

    def contents(self) -> ComposeResult:
        yield Plain(self._question)
        with Horizontal(id="answers"):
            yield Button("Back", id="no", compact=True)
            yield Button(self._yes, id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_leave(self) -> None:
        self.dismiss(False)


class PickScreen(Panel[Result]):
    """Ends with what was picked of (how it is shown, what it is); ``about`` stands above them."""

    BINDINGS = [
        bind_first("enter", "pick.choose", "Choose", action="pick"),
    ]

    def __init__(
        self, heading: str, offered: Sequence[tuple[Content, Result]], about: str = ""
    ) -> None:
        super().__init__(heading)
        self._offered, self._about = offered, about

    def contents(self) -> ComposeResult:
        if self._about:
            yield Plain(self._about, id="about")
        if self._offered:
            yield OptionList(*(Option(shown) for shown, _ in self._offered), id="offered")

    def can(self, action: str) -> bool:
        return action != "pick" or bool(self._offered)

    def action_pick(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._offered[event.option_index][1])


class CopyChoice(PickScreen[str]):
    """A choice among parts of a message to copy: (what it is, its text)."""

    def __init__(self, parts: Sequence[tuple[str, str]]) -> None:
        shown = [(Content(about).truncate(70, ellipsis=True), text) for about, text in parts]
        super().__init__("Copy", shown)


class ThemeScreen(PickScreen[str]):
    """The app in each theme while the cursor is on its name; as it was when none is picked."""

    def __init__(self, names: Sequence[str], now: str) -> None:
        super().__init__("Theme", [(Content(name), name) for name in names])
        self._names, self._now = names, now

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = self._names.index(self._now)

    @on(OptionList.OptionHighlighted)
    def _show(self, event: OptionList.OptionHighlighted) -> None:
        self.app.theme = self._names[event.option_index]

    def action_leave(self) -> None:
        self.app.theme = self._now
        self.dismiss(None)


class OverflowScreen(PickScreen[WayOut]):
    """Before the context would overflow: what to leave out, and what each choice leaves. None when
    nothing is to be sent. ``budget`` is that of the prompt as it is."""

    HELP = """
    A model can only see as many tokens as its context holds. What is left out of the prompt stays
    in the chat and on disk; the model does not see it any more.
    """

    def __init__(self, budget: TokenBudget, ways: Sequence[WayOut]) -> None:
        about = describe(budget)
        if not ways:
            about += (
                "\n\nNothing that could be left out would help. Shorten the message, or load the"
                " model with a larger --context."
            )
        heading = "The context is full" if budget.over else "The context is tight"
        super().__init__(heading, [(_option(way), way) for way in ways], about)


class CallScreen(PickScreen[Permission]):
    """Before a tool is called: whether it may be. None stops the answer."""

    HELP = """
    The model wants to call a tool. What it does is up to the server that has it: read the
    arguments first. **Always** holds for this tool in this chat, until Ingot ends.
    """

    def __init__(self, server: str, call: ToolCall) -> None:
        ways: list[tuple[str, Permission]] = [
            ("Once", "once"),
            ("Always, in this chat", "always"),
            ("No: the model is told", "no"),
        ]
        shown = [(Content(text), way) for text, way in ways]
        heading = visible(f"Call {call.name} of {server or 'an unknown server'}?")
        super().__init__(heading, shown)
        self._call = call

    def contents(self) -> ComposeResult:
        with VerticalScroll(id="arguments", can_focus=False):
            yield Plain(arguments_of(self._call))
        yield from super().contents()


def arguments_of(call: ToolCall) -> str:
    """The arguments in lines."""
    values = call.values
    if not isinstance(values, dict):
        return visible(call.arguments, lines=True)
    return visible(json.dumps(values, ensure_ascii=False, indent=2), lines=True)


def describe(budget: TokenBudget) -> str:
    """Say in one or two sentences what does not fit."""
    has = f"The prompt has {budget.prompt_tokens:,} tokens, the context holds {budget.context:,}."
    if budget.over:
        return f"{has} There is no room for an answer."
    return (
        f"{has} That leaves {budget.room:,} for an answer that may have {budget.max_tokens:,}:"
        " it might be cut."
    )


def _option(way: WayOut) -> Content:
    """A choice, and below it what that leaves."""
    after = way.after
    share = after.prompt_tokens / after.context
    leaves = f"prompt {after.prompt_tokens:,} ({share:.0%}), room for {after.room:,} tokens"
    return Content.assemble((f"{way.says[:1].upper()}{way.says[1:]}", "bold"), f"\n  {leaves}")
