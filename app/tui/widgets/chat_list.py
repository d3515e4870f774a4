"""The list of chats, two lines each: title and date, then what was found or what it is about."""

import time
from collections.abc import Callable, Iterable

from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.chat.store.records import Chat, Hit

_UNTITLED = "(empty chat)"


class ChatList(OptionList):
    """Shows hits: a chat that was not searched for is a hit without marks."""

    def __init__(self, id: str | None = None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(id=id)
        self._clock = clock
        self._hits: list[Hit] = []

    @property
    def chosen(self) -> Hit | None:
        at = self.highlighted
        return self._hits[at] if at is not None and at < len(self._hits) else None

    def show(self, hits: Iterable[Hit]) -> None:
        """Replace what is listed; the cursor stays on its chat, or else on its line."""
        before, line = self.chosen, self.highlighted or 0
        self._hits = list(hits)
        self._draw()
        if not self._hits:
            return
        ids = [hit.chat.id for hit in self._hits]
        same = ids.index(before.chat.id) if before and before.chat.id in ids else line
        self.highlighted = min(same, len(ids) - 1)

    def on_resize(self, event: events.Resize) -> None:
        at = self.highlighted
        self._draw()
        self.highlighted = at

    def _draw(self) -> None:
        width = max(self.scrollable_content_region.width - 2, 20)
        now = self._clock()
        self.clear_options()
        self.add_options([Option(_lines(hit, width, now)) for hit in self._hits])


def _lines(hit: Hit, width: int, now: float) -> Content:
    """Two lines; matches are bold and underlined, so that no colour is needed to see them."""
    date = when(hit.chat.updated, now)
    room = width - len(date) - 1
    title = hit.chat.title or _UNTITLED
    in_title = hit.message is None
    shown = title if len(title) <= room else f"{title[: room - 1]}…"
    first = Content(f"{shown:<{room}} {date}")
    if in_title:
        first = _marked(first, hit.marks, len(shown))
    return Content("\n").join([first, Content(about(hit.chat)) if in_title else _found(hit, width)])


def _found(hit: Hit, width: int) -> Content:
    """The place that matches, on one line, its first match in sight."""
    text = "  " + hit.snippet.replace("\n", " ")
    marks = [(start + 2, end + 2) for start, end in hit.marks]
    if marks and marks[0][1] > width - 1:
        cut = marks[0][0] - width // 3
        text = "  …" + text[cut + 3 :]
        marks = [(max(start - cut, 3), max(end - cut, 3)) for start, end in marks]
    return _marked(Content(text[:width]), marks, width)


def _marked(content: Content, marks: Iterable[tuple[int, int]], end: int) -> Content:
    for begin, stop in marks:
        if begin < end:
            content = content.stylize("bold underline", begin, min(stop, end))
    return content


def about(chat: Chat) -> str:
    """What there is to say of a chat: "  12 messages · pebble"."""
    count = f"{chat.count:,} message{'' if chat.count == 1 else 's'}"
    return "  " + " · ".join(part for part in (count, chat.model) if part)


def when(then: float, now: float) -> str:
    """The time for today, the day for this year, else the date."""
    one, other = time.localtime(then), time.localtime(now)
    if one[:3] == other[:3]:
        return time.strftime("%H:%M", one)
    if one.tm_year == other.tm_year:
        return time.strftime("%d %b", one)
    return time.strftime("%Y-%m-%d", one)
