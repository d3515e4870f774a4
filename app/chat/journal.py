"""An answer on its way to the disk, in a thread, so that a slow disk keeps nobody waiting."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from app.chat.store.records import AnswerFigures, Message
from app.chat.store.store import ChatStore
from runtimes.errors import IngotError

log = logging.getLogger(__name__)


class AnswerJournal:
    """Saves one answer of the store. Used by one thread; only making it takes time."""

    def __init__(self, store: ChatStore, id: int) -> None:
        self._store, self._id = store, id
        # Its thread is waited for when the program ends: what was begun is written.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ingot-journal")
        self._thread.submit(int)  # starting a thread takes time on a busy machine: now, not later
        self._saving: Future[None] | None = None
        self._ending: Future[Message] | None = None

    def save(self, text: str, token_ids: Sequence[int], figures: AnswerFigures) -> str | None:
        """Save what there is, unless the last saving is still at it. What went wrong with the last
        one, if something did."""
        if self._saving is not None and not self._saving.done():
            return None
        error = self._saving.exception() if self._saving is not None else None
        if error is not None and not isinstance(error, IngotError):
            log.error("saving an answer", exc_info=error)
        ids = tuple(token_ids)
        self._saving = self._thread.submit(
            self._store.save_answer, self._id, text, ids, figures=figures
        )
        return None if error is None else str(error)

    def end(self, message: Message) -> None:
        """Store the answer as it ended, after what is being saved."""
        self._ended = message
        self._ending = self._thread.submit(
            self._store.end_answer,
            message.id,
            message.text,
            message.token_ids,
            message.state,
            message.figures,
            message.error,
        )
        self._thread.shutdown(wait=False)

    @property
    def ended(self) -> bool:
        """Whether the end is stored, or could not be."""
        return self._ending is not None and self._ending.done()

    def result(self, timeout: float | None = None) -> tuple[Message, str | None]:
        """Wait for ``end``: the message as it is stored; if it could not be, as it ended, and what
        went wrong."""
        assert self._ending is not None
        try:
            return self._ending.result(timeout), None
        except TimeoutError:
            said = "the answer is still being stored: the disk or another program is slow"
        except IngotError as error:
            said = str(error)
        except Exception as error:
            log.exception("storing an answer")
            said = f"{type(error).__name__}: {error}"
        return self._ended, said
