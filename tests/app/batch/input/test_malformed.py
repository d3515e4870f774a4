"""Malformed inputs through the command: every valid row answered, every bad one named by line."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

from tests.app.batch.input.malformed import Input, whole

ONE = ["--max-tokens", "4", "--quiet", "--threads", "1"]
CASES = int(os.environ.get("INGOT_TEST_MALFORMED", "100"))


def check(records: list[dict[str, Any]], given: Input) -> None:
    """Each row has its record, in order, an answer or an error that names its line."""
    assert len(records) == len(given.rows)
    for (number, valid), record in zip(given.rows, records, strict=True):
        error = record.get("error")
        if valid:
            assert not error, (number, error)
        else:
            assert error, (number, record)
            assert error["message"].startswith(f"line {number}: "), (number, error)


def test_every_bad_row_is_named_and_every_valid_one_answered(
    command: Any, gguf_file: Path, tmp_path: Path
) -> None:
    given = whole(random.Random(2026), CASES)
    assert len(given.kinds) > 10
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(given.data)
    done = command("batch", source, out, "--model", gguf_file, *ONE, "--context", "256")
    assert done.returncode == 1, done.stderr
    check([json.loads(line) for line in out.read_text("utf-8").splitlines()], given)


def test_compressed_on_stdin_with_lines_of_ten_megabytes(
    ingot: Any, gguf_file: Path, tmp_path: Path
) -> None:
    given = whole(random.Random(7), 12)
    big = b'{"prompt":"x","more":"' + b"long " * (2 * 2**20) + b'"}'
    end = b"" if given.data.endswith(b"\n") else b"\n"
    numbers = given.data.count(b"\n") + len(end) + 1
    given = Input(given.data + end + big, [*given.rows, (numbers, True)], given.kinds)
    packed = gzip.compress(given.data)
    done = ingot("batch", "-", "-", "--model", gguf_file, *ONE, "--no-input-fields", stdin=packed)
    assert done.returncode == 1, done.stderr
    check([json.loads(line) for line in done.stdout.split("\n") if line], given)
