"""The process that does a run: started, listened to, stopped."""

import json
import logging
import subprocess
import threading
from collections import deque
from typing import IO, Any

from app.builds.progress import QuantizeRun
from app.builds.settings import Settings
from runtimes.machine.processes import Child

logger = logging.getLogger(__name__)

_LINES_KEPT = 40  # of what the process says besides its events
_LINES_SHOWN = 8
_GENTLE_S = 20.0  # to clean up before it is killed; files may be large


class QuantizeProcess:
    """`quantize --json` in a session of its own: keys of this terminal do not reach it.

    ``poll`` is for one thread; the others may be called from any.
    """

    def __init__(self, settings: Settings) -> None:
        """Start it. Raises UsageError as ``Settings.options``, before anything runs."""
        arguments = settings.arguments()
        self.settings = settings
        self.run = QuantizeRun(tuple(recipe.name for recipe in settings.options().recipes))
        self.stopping = False
        self._told = False
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
            threading.Thread(target=self._read, args=(stream,), name="ingot-quantize", daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
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
        """Bring ``run`` up to date; False once it has ended and all of it is known."""
        ended = not self.running and not any(reader.is_alive() for reader in self._readers)
        while self._events:
            self.run.apply(self._events.popleft())
        if ended and not self._told:
            self._told = True
            code = self._process.returncode
            self.run.ended(code, self.last_words, stopped=self.stopping and code != 0)
            level = logging.WARNING if self.run.error else logging.INFO
            why = f": {self.run.error}" if self.run.error else ""
            logger.log(level, "quantize %s: %s%s", self.settings.model, self.run.state, why)
        return not ended

    @property
    def last_words(self) -> str:
        """The end of what the process said besides its events."""
        return "\n".join(list(self._said)[-_LINES_SHOWN:])

    def stop(self) -> None:
        """End it; what is finished is kept. Returns at once."""
        if self.stopping or not self.running:
            return
        self.stopping = True
        self._process.terminate()
        threading.Thread(target=self._insist, name="ingot-quantize-stop", daemon=True).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it ended within ``timeout`` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        for reader in self._readers:
            reader.join(5.0)
        return True

    def _insist(self) -> None:
        if not self.wait(_GENTLE_S):
            logger.warning("the run does not end; it is killed")
            self._process.kill()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for raw in stream:
                line = raw.decode(errors="replace").rstrip()
                try:
                    event = json.loads(line)
                except ValueError:
                    event = None
                if isinstance(event, dict):
                    self._events.append(event)
                elif text := line.rsplit("\r", 1)[-1]:
                    self._said.append(text)
