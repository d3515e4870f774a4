"""Chats on disk: one SQLite file, written as the answers stream."""
