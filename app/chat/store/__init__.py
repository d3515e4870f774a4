"""Chats on disk: one SQLite file, written as the answers stream."""

from app.chat.store.errors import StoreError
from app.chat.store.store import Store

__all__ = ["Store", "StoreError"]
