"""Before the context would overflow: what to leave out, and what each choice leaves."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from app.chat.budget import Budget, WayOut


class OverflowScreen(ModalScreen[WayOut | None]):
    """Ends with the choice; None when nothing is to be sent, and the draft stays.

    ``budget`` is that of the prompt as it is, ``ways`` as ``app.chat.budget.ways_out`` finds them.
    """

    HELP = """
    A model can only see as many tokens as its context holds. What is left out of the prompt stays
    in the chat and on disk; the model does not see it any more.
    """
    CSS_PATH = "overflow.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Do not send", id="overflow.leave"),
    ]

    def __init__(self, budget: Budget, ways: Sequence[WayOut]) -> None:
        super().__init__(classes="panel")
        self._budget = budget
        self._ways = tuple(ways)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = (
                "The context is full" if self._budget.over else "The context is tight"
            )
            yield Static(describe(self._budget), id="now", markup=False)
            options = [Option(_option(way), id=str(n)) for n, way in enumerate(self._ways)]
            yield OptionList(*options, id="ways", markup=False)
            if not options:
                yield Static(
                    "Nothing that could be left out would help. Shorten the message, or load the"
                    " model with a larger --context."
                )
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        ways = self.query_one("#ways", OptionList)
        ways.display = bool(self._ways)
        if self._ways:
            ways.focus()
            ways.highlighted = 0

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._ways[event.option_index])


def describe(budget: Budget) -> str:
    """What does not fit, in one or two sentences."""
    has = f"The prompt has {budget.prompt_tokens:,} tokens, the context holds {budget.context:,}."
    if budget.over:
        return f"{has} There is no room for an answer."
    return (
        f"{has} That leaves {budget.room:,} for an answer that may have {budget.max_tokens:,}:"
        " it might be cut."
    )


def _option(way: WayOut) -> Content:
    """What it does, and below it what that leaves."""
    after = way.after
    share = after.prompt_tokens / after.context
    leaves = f"prompt {after.prompt_tokens:,} ({share:.0%}), room for {after.room:,} tokens"
    return Content.assemble((f"{way.says[:1].upper()}{way.says[1:]}", "bold"), f"\n  {leaves}")
