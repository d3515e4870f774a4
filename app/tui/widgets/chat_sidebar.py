"""Lists of chats: the list itself, under the days of their newest messages, and the sidebar that
has one beside the chat that is shown."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from app.chat.listing import by_day, find_chats, model_name
from app.chat.store.errors import StoreError
from app.chat.store.records import Chat, Hit
from app.tui.app import services_of
from app.tui.keys import bind, quiet
from app.tui.textual_patches import Pane
from app.tui.widgets.prompt import SearchLine

# A list of options with which more can be done than to take them.


class TwoClicks(OptionList):
    """The first click goes to an option, as in tables; one on the option under the cursor takes it.
    With ``at_once`` the first one does."""

    at_once = False

    def on_click(self, event: events.Click) -> None:
        """Textual calls its own next, which takes the option."""
        at = event.style.meta.get("option")
        if not self.at_once and at is not None and at != self.highlighted:
            event.prevent_default()
            if not self.get_option_at_index(at).disabled:
                self.highlighted = at


_now = time.time
_UNTITLED = "(empty chat)"
_NEAR = 12  # lines before the end of a list


class ChatList(TwoClicks):
    """Shows hits: a chat that was not searched for is a hit without marks. Two lines each, title
    and date, then what was found or what the chat is about; only the title where it is ``brief``,
    and then a click takes it at once.
    """

    class NearEnd(Message):
        """The end of the list is near: more chats might be wanted."""

    def __init__(self, id: str, *, brief: bool = False) -> None:
        super().__init__(id=id, markup=False)
        self._brief = self.at_once = brief
        self._hits: list[Hit] = []
        self._rows: list[Hit | str] = []  # what the options stand for: chats and headings
        self._dated = False
        self._shown: int | None = None

    @property
    def chosen(self) -> Hit | None:
        at = self.highlighted
        found = self._rows[at] if at is not None and at < len(self._rows) else None
        return found if isinstance(found, Hit) else None

    def show(self, hits: Iterable[Hit], *, dated: bool = False, shown: int | None = None) -> None:
        """Replace what is listed; the cursor stays on its chat, or else on its line. ``dated`` puts
        them under their days, the newest first; ``shown`` is the chat that is marked."""
        before, line, top = self.chosen, self.highlighted or 0, self.scroll_y
        self._hits, self._dated, self._shown = list(hits), dated, shown
        self._draw()
        chats = [at for at, one in enumerate(self._rows) if isinstance(one, Hit)]
        if not chats:
            return
        same = (at for at in chats if before and self._hit(at).chat.id == before.chat.id)
        self.highlighted = next(same, min(chats, key=lambda at: abs(at - line)))
        if self._brief:
            self.call_after_refresh(self.scroll_to, y=top, animate=False)

    def go_to_shown(self) -> None:
        """Put the cursor on the chat that is marked."""
        for at, one in enumerate(self._rows):
            if isinstance(one, Hit) and one.chat.id == self._shown:
                self.highlighted = at

    def on_resize(self, event: events.Resize) -> None:
        at = self.highlighted
        self._draw()
        self.highlighted = at

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and new_value >= self.max_scroll_y - _NEAR:
            self.post_message(self.NearEnd())

    def _hit(self, at: int) -> Hit:
        found = self._rows[at]
        assert isinstance(found, Hit)
        return found

    def _draw(self) -> None:
        width = max(self.scrollable_content_region.width - (0 if self._brief else 2), 20)
        now = _now()
        groups = by_day(self._hits, now) if self._dated else [("", self._hits)]
        options: list[Option] = []
        self._rows = []
        for name, hits in groups:
            if name:
                self._rows.append(name)
                gap = "\n" if options else ""
                heading = Content.styled(f"{gap}{name}", "bold $text-muted")
                options.append(Option(heading, disabled=True))
            for hit in hits:
                self._rows.append(hit)
                options.append(Option(self._text(hit, width, now)))
        self.clear_options()
        self.add_options(options)

    def _text(self, hit: Hit, width: int, now: float) -> Content:
        shown = hit.chat.id == self._shown
        if self._brief:
            return _brief(hit, width, shown)
        return _lines(hit, width, now, shown)


def _brief(hit: Hit, width: int, shown: bool) -> Content:
    """The title alone, or the place that a search has found under it."""
    title = _short(hit.chat.title or _UNTITLED, width - 2)
    style = "bold" if shown else ""  # no colour: the cursor's own is behind it at times
    line = Content.styled(f"{'▸' if shown else ' '} {title}", style)
    if hit.message is None:
        return _marked(line, _later(hit.marks, 2), 2 + len(title))
    return Content("\n").join([line, _found(hit, width)])


def _lines(hit: Hit, width: int, now: float, shown: bool = False) -> Content:
    """Two lines; matches are bold and underlined, so that no colour is needed to see them."""
    date, mark = when(hit.chat.updated, now), "▸ " if shown else "  "
    room = width - len(date) - 1 - len(mark)
    title = _short(hit.chat.title or _UNTITLED, room)
    in_title = hit.message is None
    first = Content(f"{mark}{set_cell_size(title, room)} {date}")
    if in_title:
        first = _marked(first, _later(hit.marks, len(mark)), len(mark) + len(title))
    second = Content(about(hit.chat)) if in_title else _found(hit, width)
    return Content("\n").join([first, second])


def _short(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def _later(marks: Iterable[tuple[int, int]], by: int) -> Sequence[tuple[int, int]]:
    return [(start + by, end + by) for start, end in marks]


def _found(hit: Hit, width: int) -> Content:
    """The place that matches, on one line, its first match in sight."""
    text = "    " + hit.snippet.replace("\n", " ")
    marks = _later(hit.marks, 4)
    if marks and marks[0][1] > width - 1:
        cut = marks[0][0] - width // 3
        text = "    …" + text[cut + 5 :]
        marks = [(max(start - cut, 5), max(end - cut, 5)) for start, end in marks]
    return _marked(Content(text[:width]), marks, width)


def _marked(content: Content, marks: Iterable[tuple[int, int]], end: int) -> Content:
    for begin, stop in marks:
        if begin < end:
            content = content.stylize("bold underline", begin, min(stop, end))
    return content


def about(chat: Chat) -> str:
    """A line about a chat: "    12 messages · pebble"."""
    count = f"{chat.count:,} message{'' if chat.count == 1 else 's'}"
    return "    " + " · ".join(part for part in (count, model_name(chat.model)) if part)


def when(then: float, now: float) -> str:
    """The time for today, the day for this year, else the date."""
    one, other = time.localtime(then), time.localtime(now)
    if one[:3] == other[:3]:
        return time.strftime("%H:%M", one)
    if one.tm_year == other.tm_year:
        return time.strftime("%d %b", one)
    return time.strftime("%Y-%m-%d", one)


_WAITS_S = 0.12  # after a key press or a change, before the list is read
_PAGE = 100  # chats that are read at once; scrolling reads more


class ChatSidebar(Pane):
    """``shown`` is the chat that is marked. The list is read in a thread, and only while it can be
    seen."""

    HELP = """
    Your chats, the newest first. **[sidebar.search /]** searches in all of them,
    **[sidebar.leave esc]** goes back to the prompt. **[chat.sidebar alt+o]** hides the list;
    **[chat.chats ctrl+o]**, pressed here, opens it over the whole screen, where chats are renamed
    and deleted too.
    """
    BINDINGS = [
        bind("slash", "sidebar.search", "Search"),
        bind("escape", "sidebar.leave", "Back"),
        quiet("up,down", "sidebar.list", "To the list"),
    ]

    @dataclass
    class Opened(Message):
        """A chat is to be shown, at one of its messages if a search has found that."""

        chat: int
        message: int | None

    class Left(Message):
        """The prompt is to have the focus again."""

    def __init__(self) -> None:
        super().__init__("Chats")
        self._shown: int | None = None
        self._most = _PAGE
        self._more = False  # whether there may be more than are listed
        self._timer: Timer | None = None
        self._listed_for = ""  # what the list was searched for
        self._opens = False  # the first, once what was typed is listed

    def compose(self) -> ComposeResult:
        yield ChatList(id="sidebar-list", brief=True)
        yield SearchLine(placeholder="/ search", id="sidebar-search")

    @property
    def _list(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def _search(self) -> Input:
        return self.query_one(Input)

    def show_chat(self, shown: int | None) -> None:
        """This chat is shown now, or it has changed."""
        self._shown = shown
        self._read_later()

    def enter(self) -> None:
        """Give it the focus."""
        self._list.go_to_shown()
        self._list.focus()

    # Reading

    @on(events.Show)
    @on(Input.Changed)
    def _read_later(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_WAITS_S, self._read)

    @on(ChatList.NearEnd)
    def _read_more(self) -> None:
        if self._more:
            self._more = False
            self._most += 2 * _PAGE
            self._read_later()

    def _read(self) -> None:
        if self.display:
            query, most = self._search.value.strip(), self._most
            self.run_worker(
                lambda: self._find(query, most),
                thread=True,
                exclusive=True,
                exit_on_error=False,
                group="sidebar",
            )

    def _find(self, query: str, most: int) -> None:
        worker = get_current_worker()
        try:
            hits = find_chats(services_of(self).store, query, most)
        except StoreError:
            return  # what else reads and writes there says so
        if not worker.is_cancelled:
            self.call_later(self._listed, query, most, hits)

    def _listed(self, query: str, most: int, hits: list[Hit]) -> None:
        if not self.is_attached or query != self._search.value.strip():
            return
        self._more = not query and len(hits) == most
        self._list.show(hits, dated=not query, shown=self._shown)
        self.border_subtitle = "" if hits else "nothing found" if query else "none yet"
        self._listed_for = query
        if self._opens:
            self._opens = False
            self._open_chosen()

    # Keys and clicks

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _open(self, event: Message) -> None:
        event.stop()
        self._opens = self._listed_for != self._search.value.strip()
        if not self._opens:
            self._open_chosen()

    def _open_chosen(self) -> None:
        if (hit := self._list.chosen) is not None:
            self.post_message(self.Opened(hit.chat.id, hit.message))

    def action_search(self) -> None:
        self._search.focus()

    def action_list(self) -> None:
        """From the search into what it has found."""
        self._list.focus()

    def action_leave(self) -> None:
        """First empty the search, then go."""
        if self._search.value:
            self._search.value = ""
            self._list.focus()
        else:
            self.post_message(self.Left())
