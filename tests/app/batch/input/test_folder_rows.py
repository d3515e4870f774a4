"""A folder of files: one row each, in order, and nothing from outside of it."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import documents
from app.batch.input import readers
from app.batch.input.source import open_source
from app.batch.runner import check_out
from runtimes.errors import RequestError
from tests.app.batch.input.reading import codes, prompts, read
from tests.app.documents import pdf, word


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "in"
    (inside / "b").mkdir(parents=True)
    (inside / "b" / "one.txt").write_bytes(b"\xef\xbb\xbfone\nline two")
    (inside / "a.md").write_text("Grüße", "utf-8")
    (inside / "c.txt.gz").write_bytes(gzip.compress(b"packed"))
    (inside / ".hidden").write_text("not seen")
    return inside


def test_files_in_order_with_their_paths(folder: Path) -> None:
    rows = read(folder)
    names = ["a.md", "b/one.txt", "c.txt.gz"]
    assert [(row.id, row.where) for row in rows] == [(name, f'file "{name}"') for name in names]
    assert [row.task for row in rows] == prompts("Grüße", "one\nline two", "packed")
    with open_source(str(folder)) as source:
        for inside in (folder / "out.jsonl", folder / "b" / ".." / "out.jsonl"):
            with pytest.raises(RequestError, match="lies in the input"):
                check_out(inside, source, replace=False)
        check_out(folder.parent / "out.jsonl", source, replace=False)
        before = source.stamp()
        assert source.stamp() == before
        (folder / "b" / "new").write_text("x")
        assert source.stamp() != before


def test_what_is_no_file_of_the_folder_is_an_error_of_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waited for nor read without end, nor followed to where it leads."""
    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    (folder.parent / "secret").write_text("secret")
    (folder.parent / "in-too").mkdir()
    (folder.parent / "in-too" / "x").write_text("secret")
    links: dict[str, Path | str] = {
        "d1": folder.parent / "secret",
        "d2": "../secret",
        "d3": folder.parent / "in-too",
        "d4": "b/../../in-too/x",
        "d5": "d5",
        "d6": folder / "b",
        "d7": "/dev/zero",
        "e1": "nowhere",
        "e2": "pipe",
        "f": "a.md",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    (folder / "q1").write_bytes(b"\x89PNG\xff")
    (folder / "q2").write_bytes(b"")
    (folder / "q3").write_bytes(b"x" * 1001)
    with (folder / "q4").open("wb") as sparse:
        sparse.truncate(100 * 2**30)
    rows = read(folder)[3:]
    assert codes(rows) == [
        *["refused_link"] * 7,
        *["unreadable_file"] * 2,
        None,
        "unreadable_file",
        "invalid_utf8",
        "empty_prompt",
        *["line_too_long"] * 2,
    ]
    assert rows[9].task == prompts("Grüße")[0]
    assert "secret" not in repr([row.task for row in rows])


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A file deeper than Python calls functions, and deeper than it removes folders."""
    inside, before = tmp_path / "in", os.getcwd()
    inside.mkdir()
    try:
        os.chdir(inside)
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
        Path("x").write_text("deep")
    finally:
        os.chdir(before)
    yield inside
    subprocess.run(["rm", "-rf", str(inside)], check=True)


def test_any_depth(deep: Path) -> None:
    assert [row.task for row in read(deep)] == prompts("deep")
    with open_source(str(deep)) as source:
        assert source.stamp()


def test_documents_are_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pdf(folder / "d.pdf", ["one", "", "two"])
    pdf(folder / "e.pdf", [""])
    word(folder / "f.docx", "<w:p><w:r><w:t>Brief</w:t></w:r></w:p>")
    rows = read(folder)[3:]
    assert codes(rows) == [None, "unreadable_file", None]
    assert [rows[0].task, rows[2].task] == prompts("one\n\n[page 2 has no text]\n\ntwo", "Brief")
    for name, why in (
        ("d.pdf", "a PDF; name the folder"),
        ("f.docx", "a .docx is read in a folder"),
    ):
        with pytest.raises(RequestError, match=why), open_source(str(folder / name)):
            pass
    monkeypatch.setattr(documents, "find_spec", lambda _: None)
    with pytest.raises(RequestError, match="needs pypdf: pip install"):
        read(folder)
