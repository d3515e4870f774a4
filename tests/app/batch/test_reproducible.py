"""`ingot batch --reproducible`: the same answers however a job is run and stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.app import stopping
from tests.app.batch.conftest import Batch
from tests.support import write_rows

ROWS = 12
FLAGS = ["--field", "turns", "--reproducible", "--max-tokens", "8", "-q", "--context", "512"]


@pytest.mark.parametrize("name", ["pebble-q4_k_m.gguf", "onnx-int4"])
def test_the_same_answers_to_the_last_bit(
    batch: Batch, ingot: Any, command: Any, pebble_built: Path, tmp_path: Path, name: str
) -> None:
    """Two turns a row; slots, order and temperature differ, and one job is ended and resumed: of
    one runtime by a kill."""
    begin = "The following is a list of numbers and what people say of them. " * 12
    rows = [
        {"id": i, "turns": [f"{begin if i % 3 else ''}Number {i}?", f"Why {i}?"]}
        for i in range(ROWS)
    ]
    write_rows(batch.source, rows)
    batch.model = pebble_built / name
    flags = [*FLAGS, "--logprobs", "-t", "0.7", "--seed", "1"]
    killed = tmp_path / "killed.jsonl"
    six = [*flags, "--slots", "6"]
    if name == "onnx-int4":
        batch(*six, "--limit", "4", out=killed)
    else:
        held = stopping.after_rows(tmp_path / "held", 4)
        process = ingot.start(*batch.words(*six, out=killed), env=held)
        stopping.wait_stopped(process)
        process.kill()
        process.communicate()
    batch(*flags, "--slots", "3", out=killed)
    batch(*flags, "--slots", "1")
    assert [record["id"] for record in batch.records] == list(range(ROWS))
    assert killed.read_bytes() == batch.out.read_bytes()
    for out in (killed, batch.out):  # made of the journals, without the model
        batch(*flags, "--format", "openai", out=out)
    assert killed.read_bytes() == batch.out.read_bytes()
    other = batch(*flags, "--threads", "2", code=2)
    assert "threads: 1 -> 2" in other.stderr
