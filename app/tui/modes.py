"""The five things that the app does, each a Textual mode with a key of its own.

A mode keeps its screens while another one is shown: an answer goes on streaming behind a table of
rows. The screen of a mode is imported when it is first shown.

A base screen may have ``def interrupt(self) -> bool``: stop what it runs and say whether there was
something. ctrl+c calls it for the mode that is shown, then for the chat. It may have
``def put_away(self) -> bool``: when nothing runs, ctrl+c empties where one types. And it may have
``def leaving(self) -> str | None``: a sentence about work that would end with the app, which is
then asked about. ``def ask_leaving(self) -> ConfirmScreen`` asks in its own way, when there is
nothing else to ask about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from textual.binding import Binding, BindingType
from textual.screen import Screen

if TYPE_CHECKING:
    from app.tui.screens.confirm import ConfirmScreen


@runtime_checkable
class Interruptible(Protocol):
    """A screen that runs something which a key can stop."""

    def interrupt(self) -> bool:
        """Stop it; False when nothing runs."""


@runtime_checkable
class Drafting(Protocol):
    """A screen on which one types what must not be lost."""

    def put_away(self) -> bool:
        """Empty it, so that it can be had back; False when nothing was there."""


@runtime_checkable
class Occupied(Protocol):
    """A screen whose work would end with the app."""

    def leaving(self) -> str | None:
        """What would end, as a sentence; None when nothing would."""


@runtime_checkable
class OwnQuestion(Occupied, Protocol):
    """A screen that asks about its work itself, since there is more than one way to leave it."""

    def ask_leaving(self) -> ConfirmScreen:
        """The question; it ends with whether to leave."""


@dataclass(frozen=True, slots=True)
class Mode:
    """``module`` has the class ``screen``, which takes no arguments."""

    name: str
    key: str
    title: str
    module: str
    screen: str

    def open(self) -> Screen[Any]:
        made: Screen[Any] = getattr(import_module(self.module), self.screen)()
        return made


CHAT = Mode("chat", "f2", "Chat", "app.tui.screens.chat", "ChatScreen")
MODES = (
    CHAT,
    Mode("compare", "f3", "Compare", "app.tui.screens.compare", "CompareScreen"),
    Mode("batch", "f4", "Batch", "app.tui.screens.batch", "BatchScreen"),
    Mode("quantize", "f5", "Quantize", "app.tui.screens.quantize", "QuantizeScreen"),
    Mode("monitor", "f6", "Monitor", "app.tui.screens.monitor", "MonitorScreen"),
)


def openers() -> dict[str, str | Callable[[], Screen[Any]]]:
    """Textual's table of modes."""
    return {mode.name: mode.open for mode in MODES}


def bindings() -> list[BindingType]:
    """A key for each mode; it works wherever the cursor is."""
    return [
        Binding(
            mode.key,
            f"app.switch_mode('{mode.name}')",
            mode.title,
            id=f"app.{mode.name}",
            priority=True,
            show=False,
        )
        for mode in MODES
    ]
