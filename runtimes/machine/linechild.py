"""A child process that is asked and answers in lines of JSON, one value a line."""

import contextlib
import json
import logging
import math
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from subprocess import PIPE
from typing import IO, Any, Self

from runtimes.errors import IngotError
from runtimes.machine.processes import Child, ending, import_failure, signal_name

log = logging.getLogger(__name__)

_NICE = 5  # below engines, which answer others meanwhile


class LineChildError(IngotError):
    """The child gave no answer; the text says why.

    ``why``: it was ended by a "signal", "hung", could not "import" a module, or "failed" otherwise.
    ``code`` is its exit code, where it has ended.
    """

    def __init__(self, text: str, why: str, code: int = 0) -> None:
        super().__init__(text)
        self.why, self.code = why, code


class LineChild:
    """``python -m module arguments``. A context manager; leaving it ends the process."""

    def __init__(
        self,
        module: str,
        *arguments: object,
        name: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Errors begin with ``name``. The child may answer before it is asked: that it has loaded,
        for example."""
        self._name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = Child(
            *("-m", module, *arguments),
            environment=environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._said,
            start_new_session=True,  # a terminal's Ctrl-C is for us, who then end it
        )
        assert self._process.stdin is not None
        self._questions = self._process.stdin
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The child's process."""
        return self._process.pid

    def ask(self, question: Any, limit_s: float | None = None) -> Any:
        """The answer to ``question``, which the child has so long to take, and again to answer.
        Raises LineChildError."""
        line = json.dumps(question).encode() + b"\n"
        late = threading.Timer(limit_s or 0, self._process.kill)
        late.daemon = True
        if limit_s is not None:  # a child that does not read fills the pipe
            late.start()
        try:
            with contextlib.suppress(OSError):  # it has died: what it died of comes below
                self._questions.write(line)
                self._questions.flush()
        finally:
            late.cancel()
        return self.answer(limit_s)

    def answer(self, limit_s: float | None = None) -> Any:
        """The next answer, waited for at most so long. Raises LineChildError."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise LineChildError(
                f"{self._name} gave no answer within {limit_s:g} s", "hung"
            ) from None
        if not line.endswith(b"\n"):  # nothing, or what it had said of an answer
            raise self._ended()
        return json.loads(line)

    def close(self) -> None:
        """End the process. A second call does nothing."""
        self._process.kill()
        self._process.wait()
        self._said.close()
        with contextlib.suppress(OSError):
            self._questions.close()

    def __enter__(self) -> Self:
        """The child itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(b"")

    def _ended(self) -> LineChildError:
        code = self._process.wait()
        self._lines.put(b"")  # for whoever asks again
        if signal_name(code):
            return LineChildError(f"{self._name} was ended by {ending(code)}", "signal", code)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        if failure := import_failure(said):
            return LineChildError(f"{self._name} {failure}", "import", code)
        log.debug("%s said:", self._process.args, extra={"output": said})
        last = said.splitlines()[-1:] or ["it said nothing"]
        return LineChildError(f"{self._name} ended with {ending(code)}: {last[0]}", "failed", code)


def exchange() -> tuple[Iterator[Any], Callable[[Any], None]]:
    """The child's side: the questions until there are no more, and how to answer.

    What native code prints goes to stderr from now on: it must not get between the answers.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    return (json.loads(line) for line in sys.stdin), answer


def limit_child(memory: int) -> None:
    """In a child that works on what comes from elsewhere: at most ``memory`` bytes of address
    space, no core file, no Ctrl-C (the parent's, whose terminal it may share), low priority."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit("RLIMIT_AS", memory, memory)
    _limit("RLIMIT_CORE", 0, 0)
    if sys.platform != "win32":
        os.nice(_NICE)


def limit_cpu(seconds: int) -> None:
    """End this process with SIGXCPU once it has had so much more of a processor."""
    _limit("RLIMIT_CPU", math.ceil(time.process_time()) + seconds)


def _limit(kind: str, soft: int, hard: int | None = None) -> None:
    """Set a limit of this process; does nothing where the system has none, or a lower one."""
    if sys.platform != "win32":
        import resource

        number = getattr(resource, kind)
        most = resource.getrlimit(number)[1] if hard is None else hard
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (soft, most))
