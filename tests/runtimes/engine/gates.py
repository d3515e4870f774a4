"""An engine that waits for its test: nothing is left to who is faster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtimes.engine.engine import Engine
from runtimes.request import Chunk, Request
from runtimes.stream import Stream


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """The engine takes no step meanwhile; what is submitted begins together afterwards."""
    go = threading.Event()
    engine._post(lambda: go.wait() and None)
    try:
        yield
    finally:
        go.set()


class Watched(Stream):
    """A submitted request that calls ``look`` at each piece of its answer, on the engine's thread:
    between two steps."""

    def __init__(self, engine: Engine, request: Request, look: Callable[[], object]) -> None:
        super().__init__(request.id, engine.cancel)
        self._look = look
        engine.submit_to(request, self, None)

    def put(self, chunk: Chunk) -> None:
        self._look()
        super().put(chunk)
