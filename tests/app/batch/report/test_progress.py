"""Events are lines that any program can read, whatever a row has in it."""

from __future__ import annotations

import io
import json

import pytest

from app.batch.report.progress import Progress


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_half_a_surrogate_pair_is_written(encoding: str) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)

    def emit(text: str) -> None:
        stdout.write(text)

    Progress(emit=emit).note("line 1: f\ud800 is Grüße")
    assert isinstance(stdout.buffer, io.BytesIO)
    event = json.loads(stdout.buffer.getvalue())
    assert event == {"event": "note", "text": "line 1: f\ud800 is Grüße"}
