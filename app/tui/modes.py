"""Modes: the five things that the app does, each a Textual mode with a key of its own; and the base
classes of screens.

A mode keeps its screens while another one is shown: an answer keeps streaming behind a table of
rows. The screen of a mode is imported when it is first shown.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.events import ScreenResume
from textual.screen import Screen

from app.tui.textual_patches import SteadyCompositor
from runtimes import own
from runtimes.errors import IngotError

Result = TypeVar("Result")


class Styled(Screen[Result]):
    """A screen whose widgets are styled once when it opens. Textual 8.2.8 does it again whenever
    the screen is resumed, and when it gets its first size."""

    look: tuple[str, dict[str, str]] | None = None  # what it was styled by, see ``IngotApp.look``
    _leave: Callable[[], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compositor = SteadyCompositor()

    def _compositor_refresh(self) -> None:
        """Textual's, but not in a batch of changes: nothing of it would be shown. What is dirty
        stays so; ``IngotApp`` draws it when the batch has ended."""
        if not self.app._batch_count:
            super()._compositor_refresh()

    def begin(self) -> None:
        """Before anything is composed."""
        app: Any = self.app
        self.look = app.look
        both = (self.HORIZONTAL_BREAKPOINTS or (), self.VERTICAL_BREAKPOINTS or ())
        for size, breakpoints in zip(self.app.size, both, strict=True):
            fits = max((at for at, _ in breakpoints if at <= size), default=-1)
            self.update_classes({name: at == fits for at, name in breakpoints}, animate=False)

    def _on_screen_resume(self, event: ScreenResume) -> None:
        app: Any = self.app
        event.refresh_styles = self.look != app.look
        if self._leave is not None:
            self.call_later(self._leave)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.can(action)

    def can(self, action: str) -> bool:
        """Whether an action of this screen means anything now."""
        return True

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Textual takes away the last screen of the mode that is shown: with the key of a mode
        right behind esc it would be one of that mode. This one goes when its mode comes back."""
        if self.app.screen is self:
            return super().dismiss(result)

        def leave() -> None:  # what it returns would be awaited, which this screen must not
            self.dismiss(result)

        self._leave = leave
        return AwaitComplete(asyncio.sleep(0))

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """An error ends the block, and is a toast."""
        try:
            yield
        except IngotError as error:
            self.tell_error(error)

    def tell_error(self, problem: object) -> None:
        """Show an error as a toast."""
        self.notify(str(problem), severity="error", timeout=10)

    # What ctrl+c and leaving the app ask; an idle screen has these answers.

    def interrupt(self) -> bool:
        """Stop what runs; False when nothing does. ctrl+c asks the mode that is shown, then the
        chat."""
        return False

    def put_away(self) -> bool:
        """Empty where one types, so that it can be had back; False when nothing was there."""
        return False

    def leaving(self) -> str | None:
        """A sentence about work that would end with the app; None when there is none."""
        return None

    def ask_leaving(self) -> Screen[Any] | None:
        """A question of its own about that, when there is nothing else to ask about."""
        return None


@dataclass(frozen=True, slots=True)
class Mode:
    """``module`` has the class ``screen``, which takes no arguments."""

    name: str
    key: str
    title: str
    module: str
    screen: str

    def open(self) -> Screen[Any]:
        made: Screen[Any] = getattr(import_module(own(self.module)), self.screen)()
        return made


CHAT = Mode("chat", "f2", "Chat", "app.tui.screens.chat", "ChatScreen")
MODES = (
    CHAT,
    Mode("compare", "f3", "Compare", "app.tui.screens.compare", "CompareScreen"),
    Mode("batch", "f4", "Batch", "app.tui.screens.batch", "BatchScreen"),
    Mode("quantize", "f5", "Quantize", "app.tui.screens.quantize", "QuantizeScreen"),
    Mode("monitor", "f6", "Monitor", "app.tui.screens.monitor", "MonitorScreen"),
)
