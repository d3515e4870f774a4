"""Runs in the worker process: an ordinary engine behind two pipes.

It ends as soon as the parent closes its side, whatever the engine is doing then.
"""

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtimes.engine.engine import Engine
from runtimes.engine.sequence import unstarted
from runtimes.errors import IngotError
from runtimes.request import Chunk, Completion, FinishReason
from runtimes.worker.problems import pack
from runtimes.worker.wire import (
    Call,
    Cancel,
    Close,
    Done,
    Load,
    LogForwarder,
    Pulse,
    Ready,
    Refused,
    Reply,
    Sender,
    Submit,
    receive,
)

log = logging.getLogger(__name__)

# Tokens that come closer together than this share a message: at a thousand steps a second, waking
# two processes for each token would cost more than the token.
_REST_S = 0.002
_PULSE_S = 0.2

Put = Callable[[object], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Sink:
    """Where the engine's thread leaves a request's answer."""

    number: int
    out: Put
    ended: Callable[[], None]

    def put(self, chunk: Chunk) -> None:
        """See runtimes.engine.sequence.Sink."""
        self.out((self.number, chunk.text, chunk.token_ids, chunk.index))

    def finish(self, completion: Completion) -> None:
        """See runtimes.engine.sequence.Sink."""
        self.out(Done(self.number, completion))
        self.ended()


class _Pulses:
    """A thread that sends the figures while requests are running."""

    def __init__(self, engine: Engine, put: Put) -> None:
        self._engine, self._put = engine, put
        self._count = 0
        self._lock = threading.Lock()
        self._work = threading.Event()
        threading.Thread(target=self._run, name="ingot-pulse", daemon=True).start()

    def begun(self) -> None:
        """A request came."""
        with self._lock:
            self._count += 1
            self._work.set()

    def ended(self) -> None:
        """A request ended."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._work.clear()

    def _run(self) -> None:
        never = threading.Event()
        while self._work.wait():
            never.wait(_PULSE_S)
            self._put(Pulse(self._engine.stats()))


class _Server:
    """Serves the parent's messages: requests on the reader's thread, calls on the main one."""

    def __init__(self, engine: Engine, put: Put) -> None:
        self._engine, self._put = engine, put
        self._pulses = _Pulses(engine, put)
        self._calls: queue.SimpleQueue[Call | Close] = queue.SimpleQueue()

    def take(self, item: object) -> None:
        """Handle one item; what may take long is left to ``run``."""
        match item:
            case Submit():
                self._submit(item)
            case Cancel(request_id):
                self._engine.cancel(request_id)
            case Call(number, "stats"):
                self._put(Reply(number, self._engine.stats()))
            case Call() | Close():
                self._calls.put(item)

    def run(self) -> None:
        """Answer calls until the engine is closed."""
        while True:
            item = self._calls.get()
            if isinstance(item, Close):
                self._engine.close(drain=item.drain)
                self._put(Pulse(self._engine.stats()))
                return
            self._put(self._answer(item))

    def _answer(self, call: Call) -> Reply:
        try:
            return Reply(call.number, getattr(self._engine, call.method)(*call.arguments))
        except Exception as error:
            if not isinstance(error, IngotError):
                log.exception("%s failed", call.method)
            return Reply(call.number, problem=pack(error))

    def _submit(self, order: Submit) -> None:
        self._pulses.begun()
        sink = _Sink(order.number, self._put, self._pulses.ended)
        try:
            self._engine.submit_to(order.request, sink, order.grammar)
        except IngotError as error:  # the parent may have known a larger context
            sink.finish(unstarted(order.request, FinishReason.ERROR, str(error)))


def _load(order: Load) -> tuple[Engine, Ready]:
    engine = Engine.load(Path(order.path), order.settings, order.scheduling)
    gpu = engine.model.backend.on_gpu(order.settings)
    ready = Ready(
        engine.model, engine.context, engine.slots, engine.vocab_size, gpu, engine.stats()
    )
    return engine, ready


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
    sender = Sender(target, "ingot-send", _REST_S)
    (order,) = next(messages)
    logging.basicConfig(level=order.log_level, handlers=[LogForwarder(sender.put)], force=True)
    servers: queue.SimpleQueue[_Server] = queue.SimpleQueue()
    threading.Thread(
        target=_read, args=(messages, servers), name="ingot-commands", daemon=True
    ).start()
    try:
        engine, ready = _load(order)
    except Exception as error:
        log.debug("the model could not be loaded", exc_info=True)
        sender.put(Refused(pack(error)))
    else:
        server = _Server(engine, sender.put)
        sender.put(ready)
        servers.put(server)
        server.run()
    sender.close()
    sys.stderr.flush()
    # Not by way of the interpreter's end: native libraries have crashed while they were torn down.
    os._exit(0)


if __name__ == "__main__":
    main()
