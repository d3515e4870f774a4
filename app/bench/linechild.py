"""A process that says ``ready`` and then answers each line of JSON with another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any, Self

from app.bench.tools import tail
from runtimes.errors import IngotError


class LineChild:
    """``python -m module arguments``, ended on leaving. Errors name it as ``name``."""

    def __init__(self, module: str, *arguments: object, name: str) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        """Wait until it is ready."""
        try:
            if self._line() != "ready":
                raise self._failed()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def ask(self, work: Any) -> Any:
        """The answer to ``work``. Raises IngotError with the process's last lines."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error
        line = self._line()
        if not line:
            raise self._failed()
        return json.loads(line)

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _failed(self) -> IngotError:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        return IngotError(f"{self._name} failed:\n{tail(self._errors.read())}")
