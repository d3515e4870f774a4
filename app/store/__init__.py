"""Chats on disk: one SQLite file, written as the answers stream."""

from __future__ import annotations

from app.store.errors import StoreError
from app.store.store import Store

__all__ = ["Store", "StoreError"]
