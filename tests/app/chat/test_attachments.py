"""Files that go with a message."""

import os
from pathlib import Path

import pytest

from app.chat.attachments import (
    MOST_BYTES,
    AttachmentError,
    read_attachment,
)
from app.chat.store.records import Attachment


def test_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a b.txt"
    file.write_bytes("größe\r\n\tx\x1b[0m\n".encode())
    read = read_attachment(file)
    assert (read.attachment, read.warning) == (Attachment("a b.txt", "größe\n\tx\x1b[0m\n"), None)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_attachment("~/a b.txt") == read
    file.write_text("größe 🦊", encoding="utf-16")
    assert read_attachment(file).attachment.text == "größe 🦊"
    file.write_bytes("naïve ".encode("latin-1") + b"a long text that is all right otherwise")
    read = read_attachment(file)
    assert read.attachment.text.startswith("na\ufffdve")
    assert "1 times" in (read.warning or "")
    file.write_text("\ufffd is a letter too " * 20)
    assert read_attachment(file).warning is None


def test_what_cannot_be_attached_says_why(tmp_path: Path):
    def refused(path: str | Path, why: str) -> None:
        with pytest.raises(AttachmentError, match=why) as raised:
            read_attachment(path)
        assert raised.value.exit_code == 2

    refused(tmp_path / "absent", "no such file")
    refused(tmp_path, "folder")
    refused("a\0b", "cannot be read")
    refused(tmp_path / ("x" * 300), "cannot be read")
    refused("~nobody-of-this-name/x", "cannot be read|no such file")
    file = tmp_path / "f"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    refused(file, "not a text file")
    file.write_bytes("äöü".encode("latin-1") * 20)
    refused(file, "neither text")
    file.write_bytes(b" \n")
    refused(file, "empty")
    file.write_text("x" * (MOST_BYTES + 1))
    refused(file, "at most 1 MB")
    file.write_text("x" * MOST_BYTES)
    assert len(read_attachment(file).attachment.text) == MOST_BYTES
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "pipe")  # and does not wait for a writer
        refused("/dev/zero", "device")
    if Path("/proc/kallsyms").exists():  # whose size the system does not tell
        refused("/proc/kallsyms", "at most 1 MB")
    if os.geteuid() != 0:
        file.chmod(0)
        refused(file, "permitted")
