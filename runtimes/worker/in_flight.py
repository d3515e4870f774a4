"""What is in the hands of a worker process: requests, and calls that wait for a reply."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError
from runtimes.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from runtimes.stream import Stream
from runtimes.worker.wire import Done, Pulse, Ready, Reply

Answer = queue.SimpleQueue[Reply | IngotError]


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request, and what has come of it so far. ``cancelled`` means that nobody wants more."""

    request: Request
    stream: Stream
    submitted: float = field(default_factory=time.monotonic)
    first: float = 0.0
    cancelled: bool = False
    chunks: list[Chunk] = field(default_factory=list)

    def take(self, chunk: Chunk) -> None:
        """Hand on a chunk."""
        self.first = self.first or time.monotonic()
        self.chunks.append(chunk)
        self.stream.put(chunk)

    def give_up(self, reason: FinishReason, error: str | None, *, retryable: bool = False) -> None:
        """End it from this side, with the text that has come."""
        if self.cancelled:
            reason, error, retryable = FinishReason.CANCELLED, None, False
        now = time.monotonic()
        own = [chunk for chunk in self.chunks if chunk.index == 0]
        tokens = tuple(token for chunk in own for token in chunk.token_ids)
        text = "".join(chunk.text for chunk in own)
        sizes = len(self.request.prompt), len(tokens)
        first = self.first or now
        waited, total_s = first - self.submitted, now - self.submitted
        timings = Timings(0.0, waited, waited, now - first, total_s, *sizes)
        usage = Usage(*sizes)
        said = (text, tokens, reason, usage, timings)
        self.stream.finish(Completion(self.request.id, *said, error=error, retryable=retryable))


Lost = list[InFlightRequest | Answer]


class InFlight:
    """All of them by number, and what the process last said of itself.

    ``lock`` guards which process is in use, and with it what was given to it. ``moved`` is called
    when something shows that the engine gets on.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.requests: dict[int, InFlightRequest] = {}
        self.calls: dict[int, Answer] = {}
        self.ready: Ready  # both once a process has loaded
        self.stats: EngineStats
        self._numbers = itertools.count()
        self._moved = moved

    def __bool__(self) -> bool:
        return bool(self.requests or self.calls)

    def number(self) -> int:
        """One that no other request or call has had."""
        return next(self._numbers)

    def adopted(self, ready: Ready) -> None:
        """Another process is in use. With the lock held."""
        self.ready, self.stats = ready, ready.stats

    def received(self, item: Any) -> None:
        """Something that the process sent. On the thread that delivers everything."""
        match item:
            case tuple():
                if (request := self.requests.get(item[0])) is not None:
                    request.take(Chunk(*item[1:]))
                    self._moved()
            case Done(number, completion):
                self._moved()
                if (request := self.requests.pop(number, None)) is not None:
                    request.stream.finish(completion)
            case Pulse(stats):
                self._note(stats)
            case Reply(number, value):
                if isinstance(value, EngineStats):
                    self._note(value)
                elif not self.requests:
                    self._moved()
                if (waiting := self.calls.get(number)) is not None:
                    waiting.put(item)
            case logging.LogRecord():
                logger = logging.getLogger(item.name)
                if logger.isEnabledFor(item.levelno):
                    logger.handle(item)

    def _note(self, stats: EngineStats) -> None:
        before, self.stats = self.stats.steps, stats
        if stats.steps != before:
            self._moved()

    def lose(self) -> Lost:
        """Give up everything; return it. With the lock held."""
        lost: Lost = [*self.requests.values(), *self.calls.values()]
        self.requests, self.calls = {}, {}
        return lost


def fail(lost: Lost, reason: FinishReason, error: IngotError, *, retryable: bool = False) -> None:
    """End what was lost; a request that was not cancelled says the error."""
    failed = reason is FinishReason.ERROR
    for one in lost:
        if isinstance(one, InFlightRequest):
            one.give_up(reason, str(error) if failed else None, retryable=failed and retryable)
        else:
            one.put(error)
