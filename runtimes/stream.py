"""A request's answer as it comes, for any thread and any event loop."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import partial

from runtimes.request import Chunk, Completion

logger = logging.getLogger(__name__)

DoneCallback = Callable[[Completion], None]


class Stream:
    """Iterate it for chunks, or ask for the ``result``; or ``async for`` and ``await`` it.

    The engine never waits for a reader. ``first_at`` is when the first chunk came (monotonic
    seconds), for readers that look later.
    """

    def __init__(self, request_id: str, cancel: Callable[[str], None]) -> None:
        self.id = request_id
        self.first_at: float | None = None
        self._cancel = cancel
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._completion: Completion | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[DoneCallback] = []
        self._notify: Callable[[], object] = _nobody  # wakes the event loop that waits for chunks

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks until the completion is there; only one iteration sees them."""
        yield from iter(self._chunks.get, None)
        self._chunks.put(None)  # a later iteration ends at once

    def take(self) -> list[Chunk]:
        """Return the pieces that have come since the last call, without waiting; for callers that
        poll.

        Empty when nothing has come and from the end on: ``done`` says which, looked at before.
        """
        return list(iter(self._next, None))

    def _next(self) -> Chunk | None:
        """The next piece, if one is there."""
        try:
            chunk = self._chunks.get_nowait()
        except queue.Empty:
            return None
        if chunk is None:
            self._chunks.put(None)
        return chunk

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Like iterating, on the running event loop, which is not held up."""
        ready = asyncio.Event()
        self._notify = notify = partial(_calls_here().add, ready.set)
        try:
            ended = False
            while not ended:
                ready.clear()
                ended = self.done  # before: what has come until then is taken now
                while (chunk := self._next()) is not None:
                    yield chunk
                if not ended:
                    await ready.wait()
        finally:
            if self._notify is notify:  # else another iteration has begun since
                self._notify = _nobody

    def __await__(self) -> Generator[object, None, Completion]:
        """The completion, without keeping the event loop."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            calls = _calls_here()

            def finish() -> None:
                if not future.done():
                    future.set_result(None)

            self.add_done_callback(lambda _: calls.add(finish))
            yield from future
        return self.result(0)

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
        if not self.done:
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
        if self.first_at is None:
            self.first_at = time.monotonic()
        self._chunks.put(chunk)
        self._notify()

    def finish(self, completion: Completion) -> None:
        """For the engine: the end."""
        with self._lock:
            self._completion = completion
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        self._chunks.put(None)
        self._notify()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: DoneCallback) -> None:
        try:
            callback(self.result(0))
        except Exception:
            # A caller's mistake must not end the engine's thread.
            logger.exception("a done callback failed")


def _nobody() -> None:
    """No event loop waits."""


class _Calls:
    """Calls that other threads leave for an event loop. To wake it costs more than a call: those
    that come before it gets to them, such as of all rows of a step, wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._left: deque[Callable[[], object]] = deque()
        self._woken = False

    def add(self, call: Callable[[], object]) -> None:
        self._left.append(call)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # whoever listened there has closed it
                self.loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # before: what is left from now on wakes it again
        while self._left:
            self._left.popleft()()


_local = threading.local()


def _calls_here() -> _Calls:
    """Return the pending calls of the running event loop."""
    loop = asyncio.get_running_loop()
    calls: _Calls | None = getattr(_local, "calls", None)
    if calls is None or calls.loop is not loop:
        calls = _local.calls = _Calls(loop)
    return calls
