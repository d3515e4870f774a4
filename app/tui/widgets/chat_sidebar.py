"""The chats beside the one that is shown, in a terminal that is wide enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, OptionList
from textual.worker import get_current_worker

from app.chat.listing import find_chats
from app.chat.store.errors import StoreError
from app.chat.store.records import Hit
from app.tui.app import services_of
from app.tui.widgets.chat_list import ChatList
from app.tui.widgets.prompt import SearchLine

_WAITS_S = 0.12  # after a key press or a change, before the list is read
_PAGE = 100  # chats that are read at once; scrolling reads more


class ChatSidebar(Vertical):
    """``shown`` is the chat that is marked. The list is read in a thread, and only while it can be
    seen."""

    HELP = """
    Your chats, the newest first. **[sidebar.search /]** searches in all of them,
    **[sidebar.leave esc]** goes back to the prompt. **[chat.sidebar alt+o]** hides the list;
    **[chat.chats ctrl+o]**, pressed here, opens it over the whole screen, where chats are renamed
    and deleted too.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", id="sidebar.search", show=True),
        Binding("escape", "leave", "Back", id="sidebar.leave", show=True),
        Binding("up,down", "list", "To the list", id="sidebar.list", show=False),
    ]

    @dataclass
    class Opened(Message):
        """A chat is to be shown, at one of its messages if a search has found that."""

        chat: int
        message: int | None

    class Left(Message):
        """The prompt is to have the focus again."""

    def __init__(self) -> None:
        super().__init__(classes="pane")
        self.border_title = "Chats"
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
