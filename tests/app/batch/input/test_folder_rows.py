"""A folder of files: one row each, in order, and nothing from outside of it."""

from __future__ import annotations

import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.batch.input import readers
from app.batch.input.source import Row, open_source
from app.batch.runner import check_out
from app.openai.task import Task
from runtimes.errors import RequestError


def read(folder: Path) -> list[Row]:
    with open_source(str(folder)) as source:
        return list(source.rows())


def code(row: Row) -> str:
    assert row.problem is not None
    return row.problem.code


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
    assert [(row.id, row.where) for row in rows] == [
        ("a.md", 'file "a.md"'),
        ("b/one.txt", 'file "b/one.txt"'),
        ("c.txt.gz", 'file "c.txt.gz"'),
    ]
    assert [row.task for row in rows] == [
        Task((), (text,)) for text in ("Grüße", "one\nline two", "packed")
    ]


def test_links_that_leave_the_folder_are_refused(folder: Path) -> None:
    (folder.parent / "secret").write_text("secret")
    (folder.parent / "in-too").mkdir()
    (folder.parent / "in-too" / "x").write_text("secret")
    links = {
        "d1": folder.parent / "secret",
        "d2": Path("../secret"),
        "d3": folder.parent / "in-too",
        "d4": Path("b/../../in-too/x"),
        "d5": Path("d5"),
        "d6": folder / "b",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (folder / "d7").symlink_to("a.md")
    (folder / "d8").symlink_to("nowhere")
    rows = {row.id: row for row in read(folder)}
    assert [code(rows[f"d{i}"]) for i in range(1, 7)] == ["refused_link"] * 6
    assert rows["d7"].task == Task((), ("Grüße",))
    assert code(rows["d8"]) == "unreadable_file"
    assert "secret" not in repr([row.task for row in rows.values()])


def test_files_that_are_no_prompts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", 1000)
    os.mkfifo(folder / "d1")
    (folder / "d2").write_bytes(b"\x89PNG\xff")
    (folder / "d3").write_bytes(b"")
    (folder / "d4").write_bytes(b"x" * 1001)
    found = {row.id: row for row in read(folder)}
    assert [code(found[f"d{i}"]) for i in range(1, 5)] == [
        "unreadable_file", "invalid_utf8", "empty_prompt", "line_too_long",
    ]  # fmt: skip


def test_a_change_is_seen(folder: Path) -> None:
    with open_source(str(folder)) as source:
        before = source.stamp()
        assert source.stamp() == before
        (folder / "b" / "new").write_text("x")
        assert source.stamp() != before


def test_the_output_is_no_row(folder: Path) -> None:
    with open_source(str(folder)) as source:
        for inside in (folder / "out.jsonl", folder / "b" / ".." / "out.jsonl"):
            with pytest.raises(RequestError, match="lies in the input"):
                check_out(inside, source, replace=False)
        check_out(folder.parent / "out.jsonl", source, replace=False)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A file deeper than Python calls functions, and deeper than it removes folders."""
    inside, before = tmp_path / "in", os.getcwd()
    inside.mkdir()
    try:
        os.chdir(inside)
        for _ in range(1500):
            os.mkdir("d")
            os.chdir("d")
        Path("x").write_text("deep")
    finally:
        os.chdir(before)
    yield inside
    subprocess.run(["rm", "-rf", str(inside)], check=True)


def test_any_depth(deep: Path) -> None:
    (row,) = read(deep)
    assert row.task == Task((), ("deep",))
    with open_source(str(deep)) as source:
        assert source.stamp()


def test_what_is_no_file_is_an_error_of_its_row(folder: Path) -> None:
    """Neither waited for nor read without end."""
    os.mkfifo(folder / "p")
    (folder / "q").symlink_to("/dev/zero")
    (folder / "r").symlink_to("p")
    (folder / "s").symlink_to("s")
    with (folder / "t").open("wb") as sparse:
        sparse.truncate(100 * 2**30)
    assert [code(row) for row in read(folder)[3:]] == [
        "unreadable_file",
        "refused_link",
        "unreadable_file",
        "refused_link",
        "line_too_long",
    ]
