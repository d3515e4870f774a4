"""JSON that comes from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtimes.untrusted import load_json, parse_json


def test_json_is_read(tmp_path: Path):
    (tmp_path / "a.json").write_bytes('{"a": ["größe", 1.5, null, "\\ud83d\\ude00"]}'.encode())
    assert load_json(tmp_path / "a.json") == {"a": ["größe", 1.5, None, "\U0001f600"]}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"[" * 100_000, "nested"),
        (b"[" * 70 + b"]" * 70, "nested"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested"),
        (b"[" + b"1," * 2_100_000 + b"1]", "more than 2,000,000 values"),
        (b" " * 40_000_000, "more than 33,554,432 bytes"),
        (b'{"\\ud800": 1}', "surrogates"),
        (b'["\\uDfff"]', "surrogates"),
        (b"\xff\xfe1", "utf-8"),
        (b"[1" + b"0" * 5000 + b"]", "digits"),
        (b"{", "line 1"),
    ],
    ids=lambda value: value[:10] if isinstance(value, bytes) else value,
)
def test_what_is_no_plain_json_says_why(raw: bytes, why: str):
    with pytest.raises(ValueError, match=why):
        parse_json(raw)


def test_only_regular_files_are_read(tmp_path: Path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no pipes with names")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        load_json(tmp_path / "pipe")  # nor is it waited for
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="no regular file"):
        load_json(tmp_path / "zero")
    with pytest.raises(OSError, match="directory"):
        load_json(tmp_path)
