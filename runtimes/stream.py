"""A request's answer as it comes, for any thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator

from runtimes.request import Chunk, Completion

logger = logging.getLogger(__name__)

DoneCallback = Callable[[Completion], None]


class Stream:
    """Iterate it for chunks, or ask for the ``result``. The engine never waits for a reader."""

    def __init__(self, request_id: str, cancel: Callable[[str], None]) -> None:
        self.id = request_id
        self._cancel = cancel
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._completion: Completion | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[DoneCallback] = []

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks until the completion is there; only one iteration sees them."""
        while True:
            chunk = self._chunks.get()
            if chunk is None:
                self._chunks.put(None)  # a later iteration ends at once
                return
            yield chunk

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end; raises TimeoutError after ``timeout`` seconds."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"request {self.id} has not finished within {timeout} s")
        assert self._completion is not None
        return self._completion

    @property
    def done(self) -> bool:
        """True once the completion is there."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Ask the engine to stop; what was generated so far comes back as the result."""
        self._cancel(self.id)

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback`` with the completion, on the engine's thread (or at once if done)."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        self._call(callback)

    def put(self, chunk: Chunk) -> None:
        """For the engine: hand on a piece."""
        self._chunks.put(chunk)

    def finish(self, completion: Completion) -> None:
        """For the engine: the end."""
        with self._lock:
            self._completion = completion
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        self._chunks.put(None)
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: DoneCallback) -> None:
        try:
            callback(self.result(0))
        except Exception:
            # A caller's mistake must not end the engine's thread.
            logger.exception("a done callback failed")
