"""What the engine and its helpers report while an app fills the terminal: kept, never printed.

With an `EventLog` attached nothing that is logged reaches the terminal, where it would be drawn
over the screen. It takes the place of every handler that writes there, and gives them back.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass

PACKAGES = ("runtimes", "quantize", "app")
_KEPT = 1000
_LONGEST = 4000  # characters of one event


@dataclass(frozen=True, slots=True)
class Event:
    """What was reported once."""

    number: int  # counts up from 1
    time: float  # in seconds since 1970
    level: int  # logging's
    source: str
    text: str

    @property
    def level_name(self) -> str:
        """Such as "WARNING"."""
        return logging.getLevelName(self.level)


class EventLog(logging.Handler):
    """The last events. Any thread may log, and any may read."""

    def __init__(self, kept: int = _KEPT) -> None:
        super().__init__(logging.DEBUG)
        self._events: deque[Event] = deque(maxlen=kept)
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._replaced: list[tuple[logging.Logger, logging.Handler]] = []
        self._levels: dict[str, int] = {}
        self._attached: list[logging.Logger] = []

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Those with a number above ``after``, oldest first."""
        with self._guard:
            return tuple(event for event in self._events if event.number > after)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; with a traceback, the error's last line."""
        try:
            text = record.getMessage()
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                text = f"{text}: {type(error).__name__}: {error}"
        except Exception:
            self.handleError(record)
            return
        self.add(record.levelno, record.name, text, record.created)

    def add(self, level: int, source: str, text: str, time: float) -> None:
        """Keep an event."""
        with self._guard:
            event = Event(next(self._numbers), time, level, source, text[:_LONGEST])
            self._events.append(event)

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be put together is an event too; logging's own way is to print."""
        self.add(logging.ERROR, record.name, f"a log line is malformed: {record.msg!r}", 0.0)

    def attach(self) -> None:
        """Listen to everything, to our packages from INFO on, and silence what would print."""
        if self._attached:
            return
        root = logging.getLogger()
        for logger in (root, *logging.root.manager.loggerDict.values()):
            if not isinstance(logger, logging.Logger):
                continue
            loud = [handler for handler in logger.handlers if _prints(handler)]
            for handler in loud:
                logger.removeHandler(handler)
                self._replaced.append((logger, handler))
            if logger is root or (loud and not logger.propagate):
                logger.addHandler(self)
                self._attached.append(logger)
        for name in PACKAGES:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            if logger.getEffectiveLevel() > logging.INFO:
                logger.setLevel(logging.INFO)

    def detach(self) -> None:
        """Give everything back as it was. Without ``attach`` before, nothing happens."""
        for logger in self._attached:
            logger.removeHandler(self)
        for logger, handler in self._replaced:
            logger.addHandler(handler)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self._attached, self._replaced, self._levels = [], [], {}


def _prints(handler: logging.Handler) -> bool:
    """Whether it writes to the terminal; one that writes into a file stays."""
    if not isinstance(handler, logging.StreamHandler) or isinstance(handler, logging.FileHandler):
        return False
    stream = handler.stream
    if stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__):
        return True
    try:
        return bool(getattr(stream, "isatty", lambda: False)())
    except ValueError:  # closed
        return False
