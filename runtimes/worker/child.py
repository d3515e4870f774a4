"""Runs in the worker process: an ordinary engine behind two pipes.

It ends as soon as the parent closes its side, whatever the engine is doing then.
"""

import copy
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any

from runtimes.chat import characters
from runtimes.engine.engine import Engine
from runtimes.engine.sequence import unstarted
from runtimes.errors import IngotError, RequestError
from runtimes.models.registry import backend_of
from runtimes.request import Chunk, Completion, FinishReason
from runtimes.worker.wire import (
    Call,
    Cancel,
    Close,
    Done,
    PipeSender,
    Pulse,
    Ready,
    Refused,
    Reply,
    Submit,
    portable,
    receive,
    start_thread,
)

log = logging.getLogger(__name__)

# Tokens that come closer together than this share a message: at a thousand steps a second, waking
# two processes for each token would cost more than the token.
_REST_S = 0.004
_PULSE_S = 0.2

# A text of more characters is made tokens of beside the others, which it would hold up.
_LONG_TEXT = 2**16

Put = Callable[[object], None]
_Calls = queue.SimpleQueue[Call | Close]


@dataclass(frozen=True, slots=True, eq=False)
class _Sink:
    """Sink of a request's answer; the engine's thread calls it."""

    number: int
    out: Put
    ended: Callable[[], None]

    def put(self, chunk: Chunk) -> None:
        """See runtimes.engine.sequence.Sink."""
        self.out((self.number, chunk.text, chunk.token_ids, chunk.index, chunk.thought))

    def finish(self, completion: Completion) -> None:
        """See runtimes.engine.sequence.Sink."""
        self.out(Done(self.number, completion))
        self.ended()


class _Server:
    """Serves the parent's messages: requests on the reader's thread, calls on the main one, except
    those that make tokens of texts, which have two of their own: one for short texts, one for long
    ones. While requests are running, another one sends the figures."""

    def __init__(self, engine: Engine, put: Put) -> None:
        self._engine, self._put = engine, put
        self._calls, self._texts, self._long_texts = _Calls(), _Calls(), _Calls()
        self._running = 0
        self._lock = threading.Lock()
        self._work = threading.Event()
        start_thread("ingot-pulse", self._pulse)
        for calls in (self._texts, self._long_texts):
            start_thread("ingot-texts", self._answer, calls)

    def take(self, item: Any) -> None:
        """Handle one item; what may take long is left to ``run``."""
        match item:
            case Submit():
                self._submit(item)
            case Cancel(request_id):
                self._engine.cancel(request_id)
            case Call(number, "stats"):
                self._put(Reply(number, self._engine.stats()))
            case Call(number, "encoded", arguments):
                try:
                    long = characters(arguments) > _LONG_TEXT
                except RecursionError:
                    self._put(Reply(number, problem=RequestError("it is nested too deeply")))
                    return
                (self._long_texts if long else self._texts).put(item)
            case _:
                self._calls.put(item)

    def run(self) -> None:
        """Answer calls until the engine is closed."""
        end = self._answer(self._calls)
        self._engine.close(drain=end.drain)
        self._put(Pulse(self._engine.stats()))

    def _answer(self, calls: _Calls) -> Close:
        while isinstance(item := calls.get(), Call):
            try:
                value = getattr(self._engine, item.method)(*item.arguments)
                self._put(Reply(item.number, value))
            except Exception as error:
                if not isinstance(error, IngotError):
                    log.exception("%s failed", item.method)
                self._put(Reply(item.number, problem=portable(error)))
        return item

    def _submit(self, order: Submit) -> None:
        self._count(1)
        sink = _Sink(order.number, self._put, lambda: self._count(-1))
        try:
            self._engine.submit_to(order.request, sink, order.grammar)
        except Exception as error:
            if not isinstance(error, IngotError):  # the parent may have known a larger context
                log.exception("a request could not be taken in")
            sink.finish(unstarted(order.request, FinishReason.ERROR, str(portable(error))))

    def _count(self, more: int) -> None:
        with self._lock:
            self._running += more
            if self._running:
                self._work.set()
            else:
                self._work.clear()

    def _pulse(self) -> None:
        while self._work.wait():
            time.sleep(_PULSE_S)
            self._put(Pulse(self._engine.stats()))


def _read(messages: Iterator[list[Any]], early: queue.SimpleQueue[_Server]) -> None:
    """The reader's thread: commands until the parent is gone, then the end of this process.

    ``early`` gives the server once there is one.
    """
    try:
        server: _Server | None = None
        for items in messages:
            server = server or early.get()
            for item in items:
                server.take(item)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _load_adapters(engine: Engine, adapters: dict[str, Path]) -> None:
    """Load what the last process had; without one of them the others go on."""
    for name, path in adapters.items():
        try:
            engine.load_adapter(name, path)
        except IngotError as error:
            log.warning("the adapter %s is lost: %s", name, error)


class RecordQueue(QueueHandler):
    """Sends records to another process, whose `LogFormatter` needs the traceback apart from the
    message: Python's handler makes one text of both."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy of ``record`` that holds text only."""
        sent = copy.copy(record)
        sent.msg, sent.args = record.getMessage(), None
        if record.exc_info:
            sent.exc_text = logging.Formatter().formatException(record.exc_info)
        sent.exc_info = None
        return sent


def main() -> None:
    """Serve until told to end."""
    # The parent gets a terminal's Ctrl-C and a service manager's SIGTERM too, and decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    source, target = os.dup(0), os.dup(1)
    # Whatever native code prints must not get between the messages.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    messages = receive(source)
    sender = PipeSender(target, "ingot-send", _REST_S)
    (order,) = next(messages)
    # Level and name travel with the record, and the parent formats it.
    logging.basicConfig(level=order.log_level, handlers=[RecordQueue(sender.items)], force=True)
    servers: queue.SimpleQueue[_Server] = queue.SimpleQueue()
    start_thread("ingot-commands", _read, messages, servers)
    try:
        engine = Engine.load(order.path, order.settings, order.scheduling)
        gpu = backend_of(engine.model).on_gpu(order.settings)
        _load_adapters(engine, order.adapters)
    except Exception as error:
        log.debug("the model could not be loaded", exc_info=True)
        sender.put(Refused(portable(error)))
    else:
        server = _Server(engine, sender.put)
        sender.put(Ready(engine.model, engine.vocab_size, gpu, engine.stats()))
        servers.put(server)
        server.run()
    sender.close()
    sys.stderr.flush()
    # Not by way of the interpreter's end: native libraries have crashed while they were torn down.
    os._exit(0)


if __name__ == "__main__":
    main()
