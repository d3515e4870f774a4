"""What the engine and its helpers reported, newest last, as far as it passes the filter."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Input, RichLog, Static

from app.monitor.monitor import Event
from app.tui.widgets.prompt import SearchLine

LEVELS = (
    (logging.DEBUG, "everything"),
    (logging.WARNING, "warnings and errors"),
    (logging.ERROR, "errors"),
)


_NONE = (
    "Nothing was reported yet. Which file was chosen and why, fallbacks, an engine that died and"
    " was started again, warnings and errors will stand here."
)


class EventLogView(Vertical):
    """A filter line and the events. ``add`` takes events that are newer than all before."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Clear the filter", id="events.clear", show=False),
    ]
    level: reactive[int] = reactive(0, init=False)
    title: reactive[str] = reactive("", init=False)  # what stands before everything else

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane")
        self._events: list[Event] = []

    def compose(self) -> ComposeResult:
        with Horizontal(id="events-filter"):
            yield SearchLine(placeholder="words to filter by", id="events-words")
        yield Static(_NONE, id="events-none")
        # The log keeps less than the monitor does; nobody scrolls through more.
        yield RichLog(id="events-lines", wrap=True, markup=False, max_lines=2000, min_width=20)

    @property
    def last(self) -> int:
        """The number of the newest event; 0 without any."""
        return self._events[-1].number if self._events else 0

    @property
    def shown(self) -> list[Event]:
        return [event for event in self._events if self._passes(event)]

    def add(self, more: Sequence[Event]) -> None:
        """Show these too."""
        self.set_class(not self._events and not more, "-none")
        self._events.extend(more)
        self._write(more)

    def next_level(self) -> None:
        self.level = (self.level + 1) % len(LEVELS)

    def focus_filter(self) -> None:
        self.query_one("#events-words").focus()

    def action_clear(self) -> None:
        self.level = 0
        self.query_one("#events-words", Input).value = ""
        self.query_one(RichLog).focus()

    @on(Input.Submitted)
    def _done(self) -> None:
        self.query_one(RichLog).focus()

    def watch_title(self) -> None:
        parts = (self.title, "Events", LEVELS[self.level][1])
        self.border_title = " · ".join(filter(None, parts))

    @on(events.Mount)
    @on(events.Resize)
    @on(Input.Changed)
    def watch_level(self) -> None:
        """Write all lines anew: others pass, or they are broken elsewhere."""
        self.watch_title()
        self.query_one(RichLog).clear()
        self._write(self._events)

    def _write(self, events: Sequence[Event]) -> None:
        log = self.query_one(RichLog)
        for event in filter(self._passes, events):
            end = log.scroll_offset.y >= log.max_scroll_y
            log.write(line(event, self._colors), expand=True, scroll_end=end)

    @property
    def _colors(self) -> dict[str, str]:
        """Those of the theme that Rich can write; a theme of the terminal's own has none."""
        found = self.app.theme_variables
        return {name: value for name, value in found.items() if value.startswith("#")}

    def _passes(self, event: Event) -> bool:
        text = f"{event.level_name} {event.source} {event.text}".lower()
        words = self.query_one("#events-words", Input).value.lower().split()
        return event.level >= LEVELS[self.level][0] and all(word in text for word in words)


def line(event: Event, colors: Mapping[str, str]) -> Text:
    """Time, level, text and where it comes from; warnings and errors are bold and have a color."""
    when = time.strftime("%H:%M:%S", time.localtime(event.time))
    text, style = (
        f"{when} {event.level_name:<7} {event.text} ({event.source.partition('.')[0]})",
        "",
    )
    if event.level >= logging.WARNING:
        name = "text-error" if event.level >= logging.ERROR else "text-warning"
        style = f"bold {colors.get(name, '')}"
    return Text(text, style)
