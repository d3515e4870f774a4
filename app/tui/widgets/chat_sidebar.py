"""Lists of chats: the list itself, under the days of their newest messages, and the sidebar that
has one beside the chat that is shown."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from app.chat.listing import by_day, find_chats, model_name
from app.chat.store.errors import StoreError
from app.chat.store.records import Chat, Hit
from app.tui.app import services_of
from app.tui.keys import bind, quiet
from app.tui.textual_patches import Pane, latest
from app.tui.widgets.prompt import Prompt, SearchLine

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
        self._rows: list[Hit | None] = []  # what the options stand for; None is a heading
        self._dated = False
        self._shown: int | None = None
        self._query: str | None = None  # what was searched for
        self._then: tuple[str, Callable[[], None]] | None = None

    @property
    def chosen(self) -> Hit | None:
        at = self.highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    def chosen_of(self, query: str, again: Callable[[], None]) -> Hit | None:
        """The chat under the cursor of what ``query`` finds. While that is not listed there is
        none; ``again`` is called when it is, unless something else was typed."""
        if query == self._query:
            return self.chosen
        self._then = query, again
        return None

    def show(
        self, hits: Iterable[Hit], query: str, *, dated: bool = False, shown: int | None = None
    ) -> None:
        """Replace what is listed by what ``query`` finds; the cursor stays on its chat, or else on
        its line. ``dated`` puts the chats under their days, the newest first; ``shown`` is the chat
        that is marked."""
        before, line, top = self.chosen, self.highlighted or 0, self.scroll_y
        self._hits, self._dated, self._shown = list(hits), dated, shown
        self._draw()
        if chats := {at: hit.chat.id for at, hit in enumerate(self._rows) if hit}:
            same = (at for at, chat in chats.items() if before and chat == before.chat.id)
            self.highlighted = next(same, min(chats, key=lambda at: abs(at - line)))
            if self._brief:
                self.call_after_refresh(self.scroll_to, y=top, animate=False)
        self._query, then, self._then = query, self._then, None
        if then is not None and then[0] == query:
            then[1]()

    def go_to_shown(self) -> None:
        """Put the cursor on the chat that is marked."""
        for at, hit in enumerate(self._rows):
            if hit and hit.chat.id == self._shown:
                self.highlighted = at

    def on_resize(self, event: events.Resize) -> None:
        at = self.highlighted
        self._draw()
        self.highlighted = at

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value > old_value and new_value >= self.max_scroll_y - _NEAR:
            self.post_message(self.NearEnd())

    def _draw(self) -> None:
        width = max(self.scrollable_content_region.width - (0 if self._brief else 2), 20)
        now = _now()
        groups = by_day(self._hits, now) if self._dated else [("", self._hits)]
        options: list[Option] = []
        self._rows = []
        for name, hits in groups:
            if name:
                self._rows.append(None)
                gap = "\n" if options else ""
                heading = Content.styled(f"{gap}{name}", "bold $text-muted")
                options.append(Option(heading, disabled=True))
            for hit in hits:
                self._rows.append(hit)
                shown = hit.chat.id == self._shown
                text = _brief(hit, width, shown) if self._brief else _lines(hit, width, now, shown)
                options.append(Option(text))
        self.clear_options()
        self.add_options(options)


def _brief(hit: Hit, width: int, shown: bool) -> Content:
    """The title alone, or the place that a search has found under it."""
    title = _title(hit, width - 2)
    if shown:  # in no colour: the cursor's own is behind it at times
        title = title.stylize("bold")
    line = Content.assemble(("▸ ", "bold") if shown else "  ", title)
    return line if hit.message is None else Content("\n").join([line, _found(hit, width)])


def _lines(hit: Hit, width: int, now: float, shown: bool) -> Content:
    """Two lines: the title with the date, then the place that was found or what it is about."""
    date, mark = when(hit.chat.updated, now), "▸ " if shown else "  "
    room = width - len(date) - 1 - len(mark)
    title = _title(hit, room)
    padded = title.pad_right(max(room - title.cell_length, 0))
    first = Content.assemble(mark, padded, f" {date}")
    second = _found(hit, width) if hit.message is not None else Content(about(hit.chat))
    return Content("\n").join([first, second])


def _title(hit: Hit, width: int) -> Content:
    text = hit.chat.title or _UNTITLED
    if cell_len(text) > width:
        text = f"{set_cell_size(text, width - 1).rstrip()}…"
    return _marked(text, hit) if hit.message is None else Content(text)


def _found(hit: Hit, width: int) -> Content:
    """The place that matches, on one line, its first match in sight."""
    text, start = _marked(hit.snippet.replace("\n", " "), hit), "    "
    if hit.marks and hit.marks[0][1] + len(start) > width - 1:
        start += "…"
        text = text[max(hit.marks[0][0] + len(start) - width // 3, 0) :]
    return Content.assemble(start, text)[:width]


def _marked(text: str, hit: Hit) -> Content:
    """``text`` with its matches bold and underlined: no colour is needed to see them."""
    content = Content(text)
    for mark in hit.marks:
        content = content.stylize("bold underline", *mark)
    return content


def about(chat: Chat) -> str:
    """A line about a chat: "    12 messages · pebble"."""
    count = f"{chat.count:,} message{'' if chat.count == 1 else 's'}"
    return "    " + " · ".join(filter(None, (count, model_name(chat.model))))


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

    def __init__(self) -> None:
        super().__init__("Chats")
        self._shown: int | None = None
        self._most = _PAGE
        self._more = False  # whether there may be more than are listed

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
    @latest
    async def _read_later(self) -> None:
        await asyncio.sleep(_WAITS_S)
        if not self.display:
            return
        query, most, store = self._search.value.strip(), self._most, services_of(self).store
        try:
            hits = await asyncio.to_thread(find_chats, store, query, most)
        except StoreError:
            return  # what else reads and writes there says so
        self._more = not query and len(hits) == most
        self.border_subtitle = "" if hits else "nothing found" if query else "none yet"
        self._list.show(hits, query, dated=not query, shown=self._shown)

    @on(ChatList.NearEnd)
    def _read_more(self) -> None:
        if self._more:
            self._more = False
            self._most += 2 * _PAGE
            self._read_later()

    # Keys and clicks

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _open(self, event: Message) -> None:
        event.stop()
        self._open_chosen()

    def _open_chosen(self) -> None:
        hit = self._list.chosen_of(self._search.value.strip(), self._open_chosen)
        if hit is not None:
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
            self.screen.query_one(Prompt).focus()
