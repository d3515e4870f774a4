"""Files that go with a message."""

import os
from pathlib import Path

import pytest

from app.chat.attachments import (
    MOST_BYTES,
    AttachmentError,
    complete_path,
    read_attachment,
)
from app.chat.store.records import Attachment
from tests.app.documents import pdf, word


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
    if os.geteuid() != 0:
        file.chmod(0)
        refused(file, "permitted")


def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("notes.txt", "Notes.md", "new file.txt", ".hidden", "n\nl"):
        (tmp_path / name).touch()
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "deep.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert complete_path("n")[0] == "nested/"
    assert complete_path("N")[1:] == ["Notes.md", "new file.txt", "notes.txt"]
    assert complete_path("nested/") == ["nested/deep.txt"]
    assert complete_path("./nested/d") == ["./nested/deep.txt"]
    assert complete_path("~/nested/d") == ["~/nested/deep.txt"]
    assert complete_path(f"{tmp_path}/note")[-1] == f"{tmp_path}/notes.txt"
    assert complete_path(".h") == [".hidden"]
    assert ".hidden" not in complete_path("")
    assert "n\nl" not in complete_path("")
    assert complete_path("absent/") == complete_path("notes.txt/") == complete_path("\0/") == []


def test_documents_are_attached_as_their_text(tmp_path: Path):
    read = read_attachment(pdf(tmp_path / "a.pdf", ["one", ""]))
    assert read.attachment == Attachment("a.pdf", "one\n\n[page 2 has no text]")
    assert (read.warning or "").endswith(
        "a.pdf: 1 of its 2 pages have no text: they are blank, or pictures"
    )
    large = word(tmp_path / "b.docx", f"<w:p><w:r><w:t>{'x' * MOST_BYTES}</w:t></w:r></w:p>")
    assert read_attachment(large).attachment.name == "b.docx"
    larger = word(tmp_path / "c.docx", f"<w:p><w:r><w:t>{'ö' * MOST_BYTES}</w:t></w:r></w:p>")
    for path, why in (
        (larger, "its text has 2.0 MB"),
        (pdf(tmp_path / "d.pdf", [""]), "d.pdf: it has only pictures"),
    ):
        with pytest.raises(AttachmentError, match=why):
            read_attachment(path)
