"""Chats on disk: one SQLite file, written as the answers stream."""

from app.chat.store.errors import StoreError
from app.chat.store.store import ChatStore

__all__ = ["ChatStore", "StoreError"]
