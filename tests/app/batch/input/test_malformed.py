"""Malformed inputs through the command: every valid row answered, every bad one named by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.app.batch.input.reading import BAD_LINES, REFUSED, request


def test_every_bad_row_is_named_and_every_valid_one_answered(command: Any, gguf_file: Path) -> None:
    """From a compressed pipe, with a last line of ten megabytes."""
    good = json.dumps(request(max_tokens=1)).encode()
    bad = [json.dumps(row).encode() for row, *_ in REFUSED]
    lines: list[tuple[bytes, bool]] = [
        (b"\xef\xbb\xbf" + good, True),
        *((line, False) for line in (*BAD_LINES, *bad)),
        (good, False),  # its custom_id again
        (b'{"prompt":"fine","id":"\\ud800","\\udfff":1}\r', True),
        (b'{"prompt":"' + b"word " * 50_000 + b'"}', False),
        (b'{"prompt":"a\\u0000b"}', True),
        (b'{"prompt":"cut', False),
        (b'{"prompt":"x","more":"' + b"long " * (2 * 2**20) + b'"}', True),
    ]
    packed = gzip.compress(b"\n \n".join(line for line, _ in lines))  # with blank ones between
    words = ["--max-tokens", "2", "-q", "--threads", "1", "--no-input-fields", "--format", "jsonl"]
    done = command("batch", "-", "-", "--model", gguf_file, *words, stdin=packed)
    assert done.returncode == 1, done.stderr
    records = [json.loads(line) for line in done.stdout.split("\n") if line]
    for at, ((_, valid), record) in enumerate(zip(lines, records, strict=True)):
        error = record.get("error")
        assert (error is None) == valid, (at, record)
        assert valid or error["message"].startswith(f"line {2 * at + 1}: "), error
