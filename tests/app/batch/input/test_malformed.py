"""Malformed inputs through the command: every valid row answered, every bad one named by line."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

from tests.app.batch.input.malformed import whole

CASES = int(os.environ.get("INGOT_TEST_MALFORMED", "100"))


def test_every_bad_row_is_named_and_every_valid_one_answered(command: Any, gguf_file: Path) -> None:
    """From a compressed pipe, with a last line of ten megabytes."""
    given = whole(random.Random(2026), CASES)
    assert len(given.kinds) > 10
    end = b"" if given.data.endswith(b"\n") else b"\n"
    big = b'{"prompt":"x","more":"' + b"long " * (2 * 2**20) + b'"}'
    rows = [*given.rows, (given.data.count(b"\n") + len(end) + 1, True)]
    words = ["--max-tokens", "2", "-q", "--threads", "1", "--context", "256", "--no-input-fields"]
    packed = gzip.compress(given.data + end + big)
    done = command("batch", "-", "-", "--model", gguf_file, *words, stdin=packed)
    assert done.returncode == 1, done.stderr
    records = [json.loads(line) for line in done.stdout.split("\n") if line]
    for (number, valid), record in zip(rows, records, strict=True):
        error = record.get("error")
        assert (error is None) == valid, (number, record)
        assert valid or error["message"].startswith(f"line {number}: "), error
