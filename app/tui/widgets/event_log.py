"""What the engine and its helpers reported, newest last, as far as it passes the filter."""

import logging
import time
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Label, RichLog

from app.monitor.eventlog import Event

LEVELS = (
    (logging.DEBUG, "everything"),
    (logging.WARNING, "warnings and errors"),
    (logging.ERROR, "errors"),
)


class EventLogView(Vertical):
    """A filter line and the events. ``add`` takes events that are newer than all before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Clear the filter", id="events.clear", show=False),
    ]
    DEFAULT_CSS = """
    EventLogView {
        & > #events-filter { height: 1; background: $panel; padding: 0 1; }
        & > #events-filter > Label { width: auto; margin-right: 1; text-style: bold; }
        & > #events-filter > Input { width: 1fr; background: $panel; }
        & > #events-filter > Input > .input--placeholder { text-style: italic; }
        & > RichLog { height: 1fr; padding: 0 1; background: $background; }
    }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._events: list[Event] = []
        self._level = 0
        self._title = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="events-filter"):
            yield Label(id="events-level")
            yield Input(placeholder="words to filter by", id="events-words", compact=True)
        # The log keeps less than the monitor does; nobody scrolls through more.
        yield RichLog(id="events-lines", wrap=True, markup=False, max_lines=2000, min_width=20)

    def on_mount(self) -> None:
        self._rebuild()

    def set_title(self, title: str) -> None:
        """What stands before everything else."""
        self._title = title
        self._head()

    def _head(self) -> None:
        parts = (self._title, f"Events: {LEVELS[self._level][1]}")
        self.query_one("#events-level", Label).update(" · ".join(part for part in parts if part))

    def on_resize(self, event: events.Resize) -> None:
        """Lines are broken anew."""
        self._rebuild()

    def add(self, more: Sequence[Event]) -> None:
        """Show these too."""
        self._events.extend(more)
        for event in more:
            self._write(event)

    @property
    def last(self) -> int:
        """The number of the newest event; 0 without any."""
        return self._events[-1].number if self._events else 0

    @property
    def shown(self) -> list[Event]:
        return [event for event in self._events if self._passes(event)]

    def next_level(self) -> None:
        self._level = (self._level + 1) % len(LEVELS)
        self._rebuild()

    def focus_filter(self) -> None:
        self.query_one("#events-words").focus()

    def action_clear(self) -> None:
        self._level = 0
        self.query_one("#events-words", Input).value = ""
        self._rebuild()
        self.query_one(RichLog).focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        event.stop()
        self._rebuild()

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(RichLog).focus()

    def _rebuild(self) -> None:
        self._head()
        self.query_one(RichLog).clear()
        for event in self._events:
            self._write(event)

    def _write(self, event: Event) -> None:
        if self._passes(event):
            log = self.query_one(RichLog)
            log.write(line(event), scroll_end=log.scroll_offset.y >= log.max_scroll_y)

    def _passes(self, event: Event) -> bool:
        text = f"{event.level_name} {event.source} {event.text}".lower()
        words = self.query_one("#events-words", Input).value.lower().split()
        return event.level >= LEVELS[self._level][0] and all(word in text for word in words)


def line(event: Event) -> Text:
    """Time, level, text and where it comes from; warnings are bold."""
    when = time.strftime("%H:%M:%S", time.localtime(event.time))
    loud = event.level >= logging.WARNING
    package = event.source.partition(".")[0]
    return Text(f"{when} {event.level_name:<7} {event.text} ({package})", "bold" if loud else "")
