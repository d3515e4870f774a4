"""What a job does as JSON lines on stdout, for the program that started it.

Every line is an object whose ``event`` says what it is; docs/batch.md lists them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.batch.report.progress import BaseProgress, Snapshot

if TYPE_CHECKING:
    from app.batch.input.scan import InputScan

_SECONDS = 1.0


class Events(BaseProgress):
    """A view that writes events. ``emit`` takes whole lines."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._last = float("-inf")

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Write one event, in ASCII: a row's message may quote half a surrogate pair, and stdout
        may take less than UTF-8."""
        self._emit(json.dumps({"event": name, **values}) + "\n")

    def begin(self, found: InputScan) -> None:
        """A ``begin`` event, before the model is loaded."""
        self.event(
            "begin",
            {
                "rows": found.rows,
                "input_rows": found.input_rows,
                "cached": found.reusable - found.skipped,
                "failed": found.invalid + found.skipped,
                "invalid_rows": found.invalid_rows,
            },
        )

    def update(self, snapshot: Snapshot) -> None:
        """A ``progress`` event at once and then once a second."""
        now = time.monotonic()
        if now - self._last >= _SECONDS:
            self._last = now
            self.event("progress", snapshot.as_json())

    def note(self, text: str) -> None:
        """A ``note`` event."""
        self.event("note", {"text": text})
