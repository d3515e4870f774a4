"""The process that does a run: started, listened to, stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from app.builds.progress import Melt
from app.builds.settings import Settings
from runtimes.machine.processes import Child

logger = logging.getLogger(__name__)

_LINES_KEPT = 40  # of what the process says besides its events
_LINES_SHOWN = 8
if sys.platform == "win32":  # where none of them can be caught
    _SIGNALS = (signal.SIGTERM,)
else:
    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_GENTLE_S = 20.0  # to clean up after SIGINT and after SIGTERM; files may be large


class MeltProcess:
    """`quantize --json` in a session of its own: keys of this terminal do not reach it.

    ``poll`` is for one thread; the others may be called from any.
    """

    def __init__(self, settings: Settings) -> None:
        """Start it. Raises UsageError as ``Settings.options``, before anything runs."""
        arguments = settings.arguments()
        self.settings = settings
        self.melt = Melt(tuple(recipe.name for recipe in settings.options().recipes))
        self.stopping = False
        self._told = False
        # Who started us may have had Ctrl-C ignored, which children inherit.
        self._deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self._events: deque[dict[str, Any]] = deque()
        self._said: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process = Child(
            *("-m", "quantize", *arguments, "--json"),
            environment={"PYTHONUNBUFFERED": "1"},
            outlives=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        logger.info("quantize %s", " ".join(arguments))
        self._readers = [
            threading.Thread(target=read, args=(stream,), name=f"ingot-melt-{name}", daemon=True)
            for name, read, stream in (
                ("events", self._read_events, self._process.stdout),
                ("stderr", self._read_stderr, self._process.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def poll(self) -> bool:
        """Bring ``melt`` up to date; False once the run has ended and all of it is known."""
        ended = not self.running and not any(reader.is_alive() for reader in self._readers)
        while self._events:
            self.melt.apply(self._events.popleft())
        if ended and not self._told:
            self._told = True
            code = self._process.returncode
            self.melt.ended(code, self.last_words, stopped=self.stopping and code != 0)
            self._tell()
        return not ended

    @property
    def last_words(self) -> str:
        """The end of what the process said besides its events."""
        return "\n".join(list(self._said)[-_LINES_SHOWN:])

    def stop(self) -> None:
        """Interrupt it as Ctrl-C does; what is finished is kept. Returns at once."""
        if self.stopping or not self.running:
            return
        self.stopping = True
        signals = _SIGNALS[self._deaf :] or _SIGNALS
        self._send(signals[0])
        threading.Thread(
            target=self._insist, args=(signals[1:],), name="ingot-melt-stop", daemon=True
        ).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it ended within ``timeout`` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        for reader in self._readers:
            reader.join(5.0)
        return True

    def _insist(self, signals: Sequence[signal.Signals]) -> None:
        """Each of ``signals`` when the one before has not ended it in time."""
        for number in signals:
            if self.wait(_GENTLE_S):
                return
            logger.warning("the run does not end; %s is sent", number.name)
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _tell(self) -> None:
        melt = self.melt
        logger.log(
            logging.WARNING if melt.error else logging.INFO,
            "quantize %s: %s%s",
            self.settings.model,
            melt.state.value,
            f": {melt.error}" if melt.error else "",
        )

    def _read_events(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                try:
                    event = json.loads(line)
                except ValueError:
                    self._said.append(line.decode(errors="replace").rstrip())
                    continue
                if isinstance(event, dict):
                    self._events.append(event)

    def _read_stderr(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip().rsplit("\r", 1)[-1]
                if text:
                    self._said.append(text)
