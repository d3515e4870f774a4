"""``Drafts``: what was typed and not sent, on its way to the disk while one types."""

import logging
import threading
from collections.abc import Callable, Mapping

from app.chat.store.store import ChatStore
from runtimes.errors import IngotError

log = logging.getLogger(__name__)


class Drafts:
    """Stores drafts by the numbers of their chats. What was typed where no chat is yet (None) gets
    one of its own, which ``new_chat`` makes. Methods may be called from any thread; they write."""

    def __init__(self, store: ChatStore, new_chat: Callable[[], int]) -> None:
        self._store, self._new_chat = store, new_chat
        self._lock = threading.Lock()
        self._stored: dict[int, str] = {}
        self._made: int | None = None  # for what was typed where no chat is yet
        self._last = 0  # the newest state that was stored, or that must not be any more

    def keep(self, drafts: Mapping[int | None, str], state: int, *, durable: bool = False) -> None:
        """Store these, the last one as the latest. ``state`` counts them: an older state than one
        that was kept, or forgotten, changes nothing. A problem is only logged."""
        with self._lock:
            if state < self._last:
                return
            self._last = state
            for chat, text in drafts.items():
                try:
                    self._keep(chat, text, durable)
                except IngotError as error:
                    log.warning("a draft could not be kept: %s", error)

    def forget(self, chat: int, state: int) -> None:
        """The draft was sent. What was to be kept up to ``state`` is outdated."""
        with self._lock:
            self._last = state + 1
            if self._stored.pop(chat, "") or self._store.draft(chat):
                self._store.keep_draft(chat, "")

    def take(self, wanted: int | None = None) -> int | None:
        """The chat that was made for what was typed where none was yet, or None; it is that of its
        own from now on. With ``wanted``, only if it is this one."""
        with self._lock:
            made = self._made
            if made is None or wanted not in (None, made):
                return None
            self._made = None
            return made

    def _keep(self, chat: int | None, text: str, durable: bool) -> None:
        if chat is None:
            chat = self._made
            if chat is None and text.strip():
                chat = self._made = self._new_chat()
            elif chat is not None and not text.strip():
                self._made = None
                self._store.discard(chat)
                return
        if chat is None:
            return
        if chat not in self._stored:
            self._stored[chat] = self._store.draft(chat)
        if text != self._stored[chat]:
            self._store.keep_draft(chat, text, durable=durable)
            self._stored[chat] = text
