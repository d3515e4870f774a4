"""What the engine and its helpers report while an app fills the terminal, kept for a screen.

Handlers that print stay: the app has stderr go to a file (`app.tui.terminal.stderr_to`).
"""

import itertools
import logging
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
        self._levels: dict[str, int] = {}
        self._attached: list[logging.Logger] = []

    def events(self, after: int = 0) -> tuple[Event, ...]:
        """Those with a number above ``after``, oldest first."""
        with self._guard:
            return tuple(event for event in self._events if event.number > after)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; with a traceback, the error's last line."""
        level, when = record.levelno, record.created
        try:
            text = record.getMessage()
        except Exception:  # a record that cannot be put together is an event too
            level, text = logging.ERROR, f"a log line is malformed: {record.msg!r}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = f"{text}: {type(error).__name__}: {error}"
        with self._guard:
            number = next(self._numbers)
            self._events.append(Event(number, when, level, record.name, text[:_LONGEST]))

    def attach(self) -> None:
        """Listen to everything, to our packages from INFO on."""
        if self._attached:
            return
        for logger in (logging.getLogger(), *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger) and not (logger.parent and logger.propagate):
                logger.addHandler(self)
                self._attached.append(logger)
        for name in PACKAGES:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            if logger.getEffectiveLevel() > logging.INFO:
                logger.setLevel(logging.INFO)

    def detach(self) -> None:
        """Stop listening. Without ``attach`` before, nothing happens."""
        for logger in self._attached:
            logger.removeHandler(self)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        self._attached, self._levels = [], {}
