"""The chats of the user: what every front end reads and writes them through."""

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from app.chat.store import rows
from app.chat.store.database import Database
from app.chat.store.errors import StoreError
from app.chat.store.records import AnswerFigures, Attachment, Chat, Hit, Message, Role, State
from app.chat.store.rows import clean, insert, read_chat, read_message, update
from app.chat.store.search import search
from app.tools.calls import ToolCall
from runtimes.paths import data_dir

_KEEP_DELETED_S = 30 * 86400.0
_KEEP_EMPTY_S = 86400.0
# Begun before, and nothing was ever said, named or typed in it.
_EMPTY = (
    "updated < ? AND title = '' AND system IS NULL AND id NOT IN (SELECT id FROM drafts)"
    " AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.chat = chats.id)"
)


def default_path() -> Path:
    """Default path of the chat database."""
    return data_dir() / "chats.db"


class ChatStore(Database):
    """The chats in one file; every method may be called from any thread, and several programs may
    have the same file open.

    Methods raise StoreError: for a number that is not there, and for a file that cannot be read or
    written. What was saved before stays.
    """

    @classmethod
    def open(cls, path: Path | None = None) -> Self:
        """Open the chats, made when there are none.

        Answers that were being written by a program that is gone become LOST, with the text that
        it saved; what was deleted 30 days ago goes for good.
        """
        store = cls(path or default_path())
        try:
            store._tidy()
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Chats

    def new_chat(
        self, model: str | None = None, system: str | None = None, title: str = ""
    ) -> Chat:
        """An empty chat. Without a title, the first message gives it one."""
        now, values = time.time(), {"model": model, "system": system, "title": title}
        with self.writing() as db:
            row = {"created": now, "updated": now, **rows.storable(values)}
            return read_chat(db, insert(db, "chats", row))

    def chats(self, limit: int = 100) -> list[Chat]:
        """Return chats that are not deleted, the last changed first."""
        return self._list("deleted_at IS NULL ORDER BY updated DESC, id DESC LIMIT ?", limit)

    def deleted(self) -> list[Chat]:
        """The chats that can be restored, the last deleted first."""
        return self._list("deleted_at IS NOT NULL ORDER BY deleted_at DESC, id DESC")

    def _list(self, where: str, *values: int) -> list[Chat]:
        with self.reading() as db:
            found = db.execute(f"SELECT {rows.CHAT} FROM chats WHERE {where}", values)
            return [rows.chat_of(row) for row in found]

    def chat(self, id: int) -> Chat:
        """One chat; a deleted one too."""
        with self.reading() as db:
            return read_chat(db, id)

    def update_chat(self, id: int, **changes: Any) -> Chat:
        """Change ``title``, ``model``, ``system``, ``sampling``, ``tools``, ``leaf`` or ``raw``.
        Its place in the list stays: that is the messages' doing."""
        with self.writing() as db:
            read_chat(db, id)
            if changes.get("leaf") is not None:
                rows.require_in_chat(db, id, changes["leaf"])
            update(db, "chats", id, **rows.storable(changes))
            return read_chat(db, id)

    def draft(self, id: int) -> str:
        """Return the last text that ``keep_draft`` stored for the chat."""
        with self.reading() as db:
            row = db.execute("SELECT text FROM drafts WHERE id = ?", (id,)).fetchone()
            return row[0] if row else ""

    def keep_draft(self, id: int, text: str, *, durable: bool = True) -> None:
        """Store a draft, which makes the chat the last one; a blank one goes."""
        with self.writing(durable=durable) as db:
            read_chat(db, id)
            db.execute("DELETE FROM drafts WHERE id = ?", (id,))
            if text.strip():
                insert(db, "drafts", {"id": id, "text": clean(text)})
                update(db, "chats", id, updated=time.time())

    def discard(self, id: int) -> None:
        """Remove a chat in which nothing was ever said, for good."""
        empty = "id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE messages.chat = chats.id)"
        with self.writing() as db:
            db.execute(f"DELETE FROM chats WHERE {empty}", (id,))

    def delete_chat(self, id: int) -> None:
        """Hide a chat; ``restore_chat`` brings it back for 30 days."""
        with self.writing() as db:
            read_chat(db, id)
            hidden = "SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL"
            db.execute(f"UPDATE chats {hidden}", (time.time(), id))

    def restore_chat(self, id: int) -> None:
        """Undo ``delete_chat``."""
        with self.writing() as db:
            read_chat(db, id)
            update(db, "chats", id, deleted_at=None)

    # Messages

    def messages(self, chat_id: int) -> list[Message]:
        """Every branch of a chat, in the order in which they came. Of an answer that streams, what
        was saved last."""
        with self.reading() as db:
            read_chat(db, chat_id)
            return rows.linked(rows.read_messages(db, "chat = ?", chat_id))

    def message(self, id: int) -> Message:
        """One message."""
        with self.reading() as db:
            return read_message(db, id)

    def add_message(
        self,
        chat_id: int,
        parent: int | None,
        text: str,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Store a message of the user, and show its branch. It is on disk when this returns."""
        pairs = [[clean(a.name), clean(a.text)] for a in attachments]
        files = json.dumps(pairs, ensure_ascii=False) if pairs else None
        more = {"text": clean(text), "attachments": files}
        with self.writing() as db:
            message = rows.insert_message(db, chat_id, parent, Role.USER, State.DONE, **more)
            if not read_chat(db, chat_id).title:
                update(db, "chats", chat_id, title=_title(text, attachments))
            return read_message(db, message)

    def take_back(self, id: int, leaf: int | None) -> Chat:
        """Remove a message that nothing follows, as if it had not been said; ``leaf`` is shown
        again."""
        with self.writing() as db:
            message = read_message(db, id)
            if db.execute("SELECT 1 FROM messages WHERE parent = ? LIMIT 1", (id,)).fetchone():
                raise StoreError(f"message {id} has been answered")
            db.execute("DELETE FROM messages WHERE id = ?", (id,))
            update(db, "chats", message.chat, leaf=leaf)
            chat = read_chat(db, message.chat)
            if not chat.count and chat.title == _title(message.text, message.attachments):
                update(db, "chats", chat.id, title="")
            return read_chat(db, chat.id)

    def begin_answer(
        self,
        chat_id: int,
        parent: int | None,
        *,
        model: str | None = None,
        file: str | None = None,
        runtime: str | None = None,
    ) -> Message:
        """An answer without text that streams from now on, and show its branch."""
        # The name of a file need not be UTF-8.
        made_by = rows.storable({"model": model, "file": file, "runtime": runtime})
        with self.writing() as db:
            answer = State.STREAMING
            id = rows.insert_message(db, chat_id, parent, Role.ASSISTANT, answer, **made_by)
            rows.begin(db, id)
            return read_message(db, id)

    def resume_answer(self, id: int) -> Message:
        """Let an answer that has ended stream again: it continues its text."""
        with self.writing() as db:
            message = read_message(db, id)
            if message.role is not Role.ASSISTANT or message.state is State.STREAMING:
                raise StoreError(
                    f"message {id} is not an answer that has ended; it cannot be continued"
                )
            rows.begin(db, id)
            rows.touch(db, message.chat, id)
            return read_message(db, id)

    def save_answer(
        self, id: int, text: str, token_ids: Sequence[int], figures: AnswerFigures | None = None
    ) -> None:
        """Save all that an answer has so far: one that is lost has what its last save had."""
        with self.writing(durable=False) as db:
            row = db.execute("SELECT state FROM messages WHERE id = ?", (id,)).fetchone()
            if row is None:
                raise StoreError(f"there is no message {id}")
            if row[0] == State.LOST:
                # Another program took this one for dead, as it may from within a container.
                rows.begin(db, id)
            elif row[0] != State.STREAMING:
                raise StoreError(f"message {id} has ended; nothing can be added to it")
            # Beside the message, since the search index need not know it yet.
            db.execute("DELETE FROM pieces WHERE message = ?", (id,))
            more = {} if figures is None else {"figures": rows.pack_figures(figures)}
            update(db, "messages", id, text="", token_ids=b"", **more)
            ids = rows.pack_ids(token_ids)
            insert(db, "pieces", {"message": id, "text": clean(text), "token_ids": ids})

    def end_answer(self, answer: Message) -> Message:
        """Store an answer as it ended; without figures, those of its last save stay."""
        more = rows.storable({"text": answer.text, "error": answer.error})
        if answer.figures is not None:
            more["figures"] = rows.pack_figures(answer.figures)
        more["calls"] = rows.pack_calls(answer.calls)
        with self.writing() as db:
            chat = read_message(db, answer.id).chat
            rows.end(db, answer.id, rows.pack_ids(answer.token_ids), answer.state, **more)
            update(db, "chats", chat, updated=time.time())
            return read_message(db, answer.id)

    def save_calls(self, id: int, calls: Sequence[ToolCall]) -> Message:
        """Store the calls of an answer that has ended, with their outcomes."""
        with self.writing() as db:
            if not update(db, "messages", id, calls=rows.pack_calls(calls)):
                raise StoreError(f"there is no message {id}")
            return read_message(db, id)

    def set_dropped(self, ids: Iterable[int], dropped: bool) -> None:
        """Whether these messages are left out of what the model is sent."""
        with self.writing() as db:
            for id in ids:
                if not update(db, "messages", id, dropped=int(dropped)):
                    raise StoreError(f"there is no message {id}")

    # Across chats

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Chats in which all words of ``query`` are; see ``app.chat.store.search``."""
        with self.reading() as db:
            return search(db, query, limit)

    def prompts(self, limit: int = 500) -> list[str]:
        """Return the user's past messages, newest first, each text once."""
        found: dict[str, None] = {}
        query = (
            "SELECT messages.text FROM messages JOIN chats ON chats.id = messages.chat"
            " WHERE role = 'user' AND deleted_at IS NULL ORDER BY messages.id DESC"
        )
        with self.reading() as db:
            for (text,) in db.execute(query):
                found.setdefault(text)
                if len(found) >= limit:
                    break
        return list(found)

    def _tidy(self) -> None:
        """Only what has something to do writes: that waits for other programs."""
        now = time.time()
        old = f"FROM chats WHERE deleted_at <= ? OR ({_EMPTY})"
        before = (now - _KEEP_DELETED_S, now - _KEEP_EMPTY_S)
        with self.reading() as db:
            work = rows.orphans(db) or db.execute(f"SELECT 1 {old} LIMIT 1", before).fetchone()
        if work:
            with self.writing() as db:
                rows.mark_lost(db, rows.orphans(db))
                db.execute(f"DELETE {old}", before)


def _title(text: str, attachments: Sequence[Attachment]) -> str:
    """Title of a chat, from its first message."""
    return clean(rows.title_of(text) or next((a.name for a in attachments), ""))
