"""What a job does as JSON lines on stdout, for the program that started it.

Every line is an object whose ``event`` says what it is; docs/batch.md lists them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.batch.report.progress import Silent, Snapshot
from app.batch.report.time_left import left_json

if TYPE_CHECKING:
    from app.batch.input.survey import Survey

_SECONDS = 1.0


class Events(Silent):
    """A view that writes events. ``emit`` takes whole lines."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._last = float("-inf")

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Write one event, in ASCII: a row's message may quote half a surrogate pair, and stdout
        may take less than UTF-8."""
        self._emit(json.dumps({"event": name, **values}) + "\n")

    def begin(self, found: Survey) -> None:
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
        if now - self._last < _SECONDS:
            return
        self._last = now
        each = [engine.as_json() for engine in snapshot.engines]
        engines = {"engines": each} if each else {}
        self.event(
            "progress",
            {
                "rows": snapshot.rows,
                "done": snapshot.done,
                "cached": snapshot.cached,
                "failed": snapshot.failed,
                "running": snapshot.running,
                "slots": snapshot.slots,
                "elapsed_s": round(snapshot.elapsed_s, 3),
                **left_json(snapshot.left),
                "prefill_tps_now": round(snapshot.prefill_now, 1),
                "prefill_tps": round(snapshot.prefill, 1),
                "decode_tps_now": round(snapshot.decode_now, 1),
                "decode_tps": round(snapshot.decode, 1),
                "kv_tokens": snapshot.kv_tokens,
                "kv_capacity": snapshot.kv_capacity,
                "memory_bytes": snapshot.memory,
                "draining": snapshot.draining,
                "working": list(snapshot.working),
                **engines,
            },
        )

    def note(self, text: str) -> None:
        """A ``note`` event."""
        self.event("note", {"text": text})
