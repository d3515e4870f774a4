"""The user's chats: search, open, rename, delete and bring back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, OptionList, Static

from app.chat.listing import find_chats
from app.chat.store.errors import StoreError
from app.chat.store.records import Chat, Hit
from app.chat.store.store import ChatStore
from app.tui.keys import bind
from app.tui.screens.dialogs import AskScreen, ListPanel, bind_first, list_keys
from app.tui.textual_patches import Plain, latest
from app.tui.widgets.chat_sidebar import ChatList
from app.tui.widgets.prompt import SearchLine

_WAITS_S = 0.12  # after a key press, before the search begins
_NEWEST = 500


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """A choice: a chat, at one of its messages if a search found that; None is a new chat."""

    chat: Chat | None
    message: int | None = None


class ChatsScreen(ListPanel[ChatChoice]):
    """Ends with what to show, None when it was left. ``current`` is the chat that is open; when it
    was deleted here, leaving asks for a new one. The search begins with ``query``."""

    CSS_PATH = "chats.tcss"
    LIST = "#list"
    BINDINGS = [
        bind("escape", "chats.leave", "Back"),
        bind_first("enter", "chats.open", "Open"),
        bind_first("ctrl+n", "chats.new", "New"),
        bind_first("ctrl+l", "chats.rename", "Rename"),
        bind("delete,ctrl+d", "chats.delete", "Delete"),
        bind_first("ctrl+z", "chats.undo", "Undo"),
        bind_first("f10", "chats.deleted", "Deleted"),
        *list_keys("chats", priority=True),
    ]

    def __init__(self, store: ChatStore, current: int | None = None, query: str = "") -> None:
        super().__init__()
        self._store, self._current = store, current
        self._line = SearchLine(query, "Search in all chats", id="search")
        self._list = ChatList(id="list")
        self._undo: list[int] = []
        self._bin = False  # the deleted ones are listed

    def contents(self) -> ComposeResult:
        yield self._line
        yield self._list
        yield Plain(id="said")

    def on_mount(self) -> None:
        self._line.focus()
        self._read()

    @on(Input.Changed, "#search")
    def _typed(self) -> None:
        self._read(_WAITS_S)

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        self.action_open()

    @latest
    async def _read(self, pause: float = 0.0) -> None:
        """List anew, after a ``pause`` in seconds."""
        await asyncio.sleep(pause)
        self.refresh_bindings()
        query, deleted = self._line.value.strip(), self._bin
        hits, error = [], ""
        try:
            hits = await asyncio.to_thread(find_chats, self._store, query, _NEWEST, deleted=deleted)
        except StoreError as failed:
            error = str(failed)
        box = self.query_one(".box")
        box.border_title = "Deleted chats" if deleted else "Chats"
        box.border_subtitle = f"the {_NEWEST} newest" if len(hits) == _NEWEST else f"{len(hits):,}"
        said = self.query_one("#said", Static)
        none = "No deleted chat." if deleted else "There is no chat yet."
        empty = "No chat has all these words." if query else none
        note = "Enter brings a chat back. After 30 days they are gone." if deleted else ""
        text = error or (note if hits else empty)
        said.update(text)
        said.display = bool(text)
        self._list.show(hits, query, dated=not (query or deleted), shown=self._current)

    def _chosen(self, then: Callable[[], None]) -> Hit | None:
        """The chat under the cursor; None, and ``then`` later, while another search is under
        way."""
        return self._list.chosen_of(self._line.value.strip(), then)

    def can(self, action: str) -> bool:
        """Deleted chats can only be brought back; undo needs something to undo."""
        if action == "undo":
            return bool(self._undo)
        return not self._bin or action not in ("new", "rename", "delete")

    def action_open(self) -> None:
        hit = self._chosen(self.action_open)
        if hit is None:
            return
        if self._bin:
            self._restore(hit.chat.id)
        else:
            self.dismiss(ChatChoice(hit.chat, hit.message))

    def action_new(self) -> None:
        self.dismiss(ChatChoice(None))

    def action_leave(self) -> None:
        """First empty the search, then leave the deleted ones, then go."""
        if self._line.value:
            self._line.value = ""
        elif self._bin:
            self.action_deleted()
        else:
            gone = self._current is not None and self._current in self._undo
            self.dismiss(ChatChoice(None) if gone else None)

    def action_rename(self) -> None:
        hit = self._chosen(self.action_rename)
        if hit is None:
            return
        id = hit.chat.id

        def named(title: str | None) -> None:
            if title is not None:
                with self.errors_told():
                    self._store.update_chat(id, title=title)
                    self._read()

        self.app.push_screen(AskScreen("Rename the chat", hit.chat.title), named)

    def action_delete(self) -> None:
        hit = self._chosen(self.action_delete)
        if hit is None:
            return
        with self.errors_told():
            self._store.delete_chat(hit.chat.id)
            self._read()
            self._undo.append(hit.chat.id)
            title = hit.chat.title or "an empty chat"
            self.notify(f"Deleted: {title}. [chats.undo ctrl+z] brings it back.")

    def action_undo(self) -> None:
        if self._undo:
            self._restore(self._undo[-1])

    def _restore(self, id: int) -> None:
        with self.errors_told():
            self._store.restore_chat(id)
            self._read()
            self._undo = [other for other in self._undo if other != id]
            self.notify("It is back.")

    def action_deleted(self) -> None:
        """List the deleted chats, or the others again."""
        self._bin = not self._bin
        self._read()
