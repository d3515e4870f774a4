"""Messages between parent and child of the worker, and their transport over pipes.

A message is a pickled list of items. Only our own child is on the other side, so pickle is safe
here. An item is one of the classes below, a record of the child's log, or a chunk of a request's
answer. Of those there is one a token: a plain tuple, of the request's number and the fields of a
``Chunk``.
"""

import contextlib
import io
import logging
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from runtimes import errors
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError, OutOfMemoryError, RuntimeMissingError
from runtimes.machine.processes import import_advice
from runtimes.models.modelfile import ModelFile
from runtimes.request import Completion, Request
from runtimes.settings import RunnerSettings, SchedulerSettings

log = logging.getLogger(__name__)

_BUFFER = 1 << 20


class Load(NamedTuple):
    """First word of the parent: what the child serves. ``log_level`` is the parent's."""

    path: Path
    settings: RunnerSettings
    scheduling: SchedulerSettings | None
    log_level: int
    adapters: dict[str, Path]


class Submit(NamedTuple):
    """A request, by a number that no other request of this worker has had."""

    number: int
    request: Request
    grammar: str | None  # of its constraint; what ``check_request`` gave


class Cancel(NamedTuple):
    """Stop the requests of this id."""

    request_id: str


class Call(NamedTuple):
    """Call a method of the engine; a ``Reply`` of the same number answers."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class Close(NamedTuple):
    """End the engine, then the process."""

    drain: bool


class Ready(NamedTuple):
    """The model is loaded; ``gpu`` whether layers may lie on one."""

    model: ModelFile
    vocab_size: int
    gpu: bool
    stats: EngineStats


class Refused(NamedTuple):
    """The model could not be loaded; the child ends."""

    problem: IngotError


class Done(NamedTuple):
    """The end of a request."""

    number: int
    completion: Completion


class Reply(NamedTuple):
    """Value that a call returned, or the error that it raised."""

    number: int
    value: Any = None
    problem: IngotError | None = None


class Pulse(NamedTuple):
    """Sent twice a second while there is work, and once when there is none left."""

    stats: EngineStats


def start_thread(name: str, target: Callable[..., object], *arguments: object) -> threading.Thread:
    """A thread that runs ``target``, and keeps no process from ending."""
    thread = threading.Thread(target=target, name=name, args=arguments, daemon=True)
    thread.start()
    return thread


class PipeSender:
    """A thread that writes to a pipe. ``put`` never blocks, whether anybody reads or not.

    Everything that was put since the last write goes out as one message. After one with chunks the
    thread rests for ``rest_s``, or until there is something else: chunks that come in the meantime
    cost one message instead of many, and what comes after a longer silence does not wait.

    An item that cannot be pickled is left out, and ``unsendable`` called with it and the error.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        rest_s: float = 0.0,
        unsendable: Callable[[object, Exception], None] | None = None,
    ) -> None:
        """``fd`` belongs to the sender from now on."""
        self._fd = fd
        self._unsendable = unsendable or _log_unsendable
        self._rest_s = rest_s
        self._hurry = threading.Event()
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = start_thread(name, self._run)

    def put(self, item: object) -> None:
        """Have it sent."""
        self.items.put(item)
        if type(item) is not tuple:
            self._hurry.set()

    def close(self, timeout: float | None = None) -> None:
        """Write what is there, then close the pipe; wait for that at most ``timeout`` seconds."""
        self.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        # The reader may be gone; whoever reads from it notices.
        with contextlib.suppress(OSError), open(self._fd, "wb") as stream:
            last = False
            while not last:
                items = [self.items.get()]
                self._hurry.clear()
                with contextlib.suppress(queue.Empty):
                    while True:
                        items.append(self.items.get(False))
                last = None in items
                stream.write(self._packed([item for item in items if item is not None]))
                stream.flush()
                if self._rest_s and type(items[0]) is tuple:
                    self._hurry.wait(self._rest_s)

    def _packed(self, items: list[Any]) -> bytes:
        """``items`` as a message; one each where something of them cannot be sent."""
        try:
            return pickle.dumps(items)
        except Exception as error:  # nested too deeply, half a surrogate pair in a log record ...
            if len(items) > 1:
                return b"".join(self._packed([item]) for item in items)
            self._unsendable(items[0], error)
            return b""


def _log_unsendable(item: object, error: Exception) -> None:
    kind = type(item).__name__
    log.error("a %s could not be sent to the other process: %s", kind, type(error).__name__)


def receive(fd: int) -> Iterator[list[Any]]:
    """Messages until the other side closes or dies, also in the middle of one. Closes ``fd``."""
    with io.BufferedReader(io.FileIO(fd), _BUFFER) as stream:
        while stream.peek(1):
            try:
                yield pickle.load(stream)
            except (EOFError, pickle.UnpicklingError):
                if stream.peek(1):  # no dead writer's half of a message
                    raise
                return


def portable(error: BaseException) -> IngotError:
    """Return the error to raise on the other side: of the nearest class in runtimes.errors; what is
    none of them keeps its own class in the text."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError("the machine is out of memory")
    if isinstance(error, (ImportError, SyntaxError)):
        advice = import_advice(f"{type(error).__name__}: {error}")
        return RuntimeMissingError(f"the worker process {advice}")
    for kind in type(error).__mro__:
        if kind.__module__ == errors.__name__ and issubclass(kind, IngotError):
            return kind(str(error))
    return IngotError(f"{type(error).__name__}: {error}")
