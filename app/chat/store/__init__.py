"""Chats on disk: one SQLite file, written as the answers stream."""

from __future__ import annotations

from app.chat.store.errors import StoreError
from app.chat.store.store import Store

__all__ = ["Store", "StoreError"]
