"""Keys and values of long chats on disk: one that is opened again is not read anew.

A file a chat, in the form of ``runtimes.engine.session``, which refuses what is damaged or of
another model. It holds the text of the chat as tokens, and is readable by its owner only.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.models.memory import estimate
from runtimes.settings import RunnerSettings

log = logging.getLogger(__name__)

_KEEP_S = 30 * 86400.0  # as long as deleted chats can be restored
_WORTH_S = 2.0  # of reading; a chat that is read sooner is not saved


@dataclass(frozen=True, slots=True)
class SavedContexts:
    """At most ``most_bytes`` of files in ``folder``; the oldest go first."""

    folder: Path
    most_bytes: int
    worth_s: float = _WORTH_S

    def save(
        self, engine: EngineApi, settings: RunnerSettings, chat: int, tokens: Sequence[int]
    ) -> None:
        """Keep what the engine, loaded with ``settings``, holds of ``tokens``, if there is room and
        reading them again would take long. A problem is only logged: the chat itself is stored
        elsewhere.
        """
        try:
            one = replace(settings, slots=1, context=len(tokens))
            read_tps = engine.stats().prefill_tps
            slow = read_tps > 0 and len(tokens) / read_tps >= self.worth_s
            if slow and estimate(engine.model, one).kv <= self.most_bytes:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                kept = engine.save_session(tokens, self._path(chat))
                log.info("saved %d of %d tokens of chat %d", kept, len(tokens), chat)
        except (IngotError, OSError) as error:
            log.info("the context of chat %d is not saved: %s", chat, error)
        prune(self.folder, "*.context", self.most_bytes)

    def load(self, engine: EngineApi, chat: int) -> None:
        """Give the engine what was saved of the chat, if anything was. A problem is logged."""
        path = self._path(chat)
        if self.most_bytes and path.is_file():
            try:
                kept = engine.load_session(path)
                log.info("loaded %d tokens of chat %d", len(kept), chat)
            except IngotError as error:
                log.info("the saved context of chat %d is not used: %s", chat, error)

    def _path(self, chat: int) -> Path:
        return self.folder / f"{chat}.context"


def prune(folder: Path, pattern: str, most_bytes: int) -> None:
    """Remove files that were not touched for a month, then the oldest beyond ``most_bytes``."""
    room, oldest = most_bytes, time.time() - _KEEP_S
    with suppress(OSError):  # somebody else may prune, too
        files = [(path.stat(), path) for path in folder.glob(pattern)]
        for status, path in sorted(files, key=lambda item: -item[0].st_mtime):
            room -= status.st_size
            if room < 0 or status.st_mtime < oldest:
                path.unlink(missing_ok=True)
