"""Chats as lists show them: looked for, under their days, and what a chat's model is called."""

from collections.abc import Iterable
from datetime import date
from itertools import groupby
from pathlib import PurePath

from app.chat.store.records import Hit
from app.chat.store.store import ChatStore

_FOUND = 100  # hits of a search; who wants another one types more


def find_chats(store: ChatStore, query: str, most: int, *, deleted: bool = False) -> list[Hit]:
    """The ``most`` newest chats, or those that the words of ``query`` are in; of deleted ones only
    the titles are searched. Blocks. Raises StoreError."""
    if query and not deleted:
        return store.search(query, _FOUND)
    words = query.lower().split()
    chats = store.deleted() if deleted else store.chats(most)
    found = (chat for chat in chats if all(word in chat.title.lower() for word in words))
    return [Hit(chat, None, chat.title, ()) for chat in found]


def day_group(then: float, now: float) -> str:
    """The heading for something of ``then``: Today, Yesterday, Previous 7 days, or its month."""
    day, today = date.fromtimestamp(then), date.fromtimestamp(now)
    days = (today - day).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    if days <= 7:
        return "Previous 7 days"
    return day.strftime("%B" if day.year == today.year else "%B %Y")


def by_day(hits: Iterable[Hit], now: float) -> list[tuple[str, list[Hit]]]:
    """``hits``, the newest first, under the headings of their days."""
    days = groupby(hits, lambda hit: day_group(hit.chat.updated, now))
    return [(name, list(group)) for name, group in days]


def model_name(model: str | None) -> str:
    """Short name of a chat's model: the last part of its path, without suffix."""
    name = PurePath(model.rstrip("/")).name if model else ""
    return name.removesuffix(".gguf")
