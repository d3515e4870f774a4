"""Files of rows: every line becomes a row or says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.batch.input import lines as lines_module
from app.batch.input.source import Row, open_source
from app.openai.task import Task
from runtimes.errors import RequestError

# How compressed files, archives and other formats begin.
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh9", b"\xfd7zXZ", b"GGUF", b"%PDF-")


def read(path: Path, format: str | None = None, limit: int | None = None) -> list[Row]:
    with open_source(str(path), format=format, limit=limit) as source:
        return list(source.rows())


def write(tmp_path: Path, data: bytes, name: str = "in.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def code(row: Row) -> str:
    assert row.problem is not None
    return row.problem.code


def test_a_broken_line_names_its_column_in_one_sentence(tmp_path: Path) -> None:
    [row] = read(write(tmp_path, b'{"broken\n'))
    assert row.problem is not None
    assert row.problem.message == "not JSON: Unterminated string starting at column 2"


def test_rows_lines_and_ids(tmp_path: Path) -> None:
    data = b'{"id":"a","prompt":"x"}\n\n  \n{"prompt":"y"}\r\n{"id":"a","prompt":"z"}'
    rows = read(write(tmp_path, data))
    assert [(row.index, row.line, row.id) for row in rows] == [(0, 1, "a"), (1, 4, 1), (2, 5, "a")]
    assert [row.task for row in rows] == [Task((), (text,)) for text in "xyz"]


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (row,) = read(write(tmp_path, b'\xef\xbb\xbf{"prompt":"x"}\n'))
    assert row.task == Task((), ("x",))
    (row,) = read(write(tmp_path, b"\xef\xbb\xbfhello\n", "in.txt"))
    assert row.task == Task((), ("hello",))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "invalid_json"),
        (b'{"prompt":"x"} trailing', "invalid_json"),
        (b'{"prompt":NaN}', "invalid_json"),
        (b'{"prompt":"x","score":-Infinity}', "invalid_json"),
        (b'{"prompt":"a\x00b"}', "invalid_json"),
        (b"\x00\x00\x00", "invalid_json"),
        (b'{"n":' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"prompt":"\xff"}', "invalid_utf8"),
        (b'"just text"', "wrong_type"),
        (b"null", "wrong_type"),
        (b"[1]", "wrong_type"),
        (b'{"prompt":"\\ud800"}', "invalid_unicode"),
    ],
)
def test_a_bad_line_is_one_bad_row(tmp_path: Path, line: bytes, expected: str) -> None:
    rows = read(write(tmp_path, b'{"prompt":"x"}\n' + line + b'\n{"prompt":"y"}\n'))
    assert [row.problem is None for row in rows] == [True, False, True]
    assert code(rows[1]) == expected
    assert rows[1].line == 2


def test_a_line_of_five_megabytes(tmp_path: Path) -> None:
    text = "word " * 2**20
    rows = read(write(tmp_path, json.dumps({"prompt": text}).encode() + b'\n{"prompt":"y"}'))
    assert [row.task for row in rows] == [Task((), (text,)), Task((), ("y",))]


def test_a_line_too_long_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    long = b'{"prompt":"' + b"x" * 5000 + b'"}\n'
    fits = b'{"prompt":"' + b"x" * (1000 - 13) + b'"}\n'
    assert len(fits) == 1001
    rows = read(write(tmp_path, long + fits + b'{"prompt":"y"}\n' + long.rstrip()))
    assert [row.line for row in rows] == [1, 2, 3, 4]
    assert code(rows[0]) == code(rows[3]) == "line_too_long"
    assert isinstance(rows[1].task, Task)
    assert rows[2].task == Task((), ("y",))


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    rows = read(write(tmp_path, 'first\n\n{"not": "json here"}\nlast é'.encode(), "in.txt"))
    assert [row.task for row in rows] == [
        Task((), (text,)) for text in ("first", '{"not": "json here"}', "last é")
    ]
    assert [row.line for row in rows] == [1, 3, 4]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("in", b'  {"prompt":"x"}\n', "jsonl"),
        ("in", b"plain\n", "text"),
        ("in.ndjson", b"plain\n", "jsonl"),
        ("in.txt", b"{}\n", "text"),
    ],
)
def test_format(tmp_path: Path, name: str, data: bytes, expected: str) -> None:
    with open_source(str(write(tmp_path, data, name))) as source:
        assert source.reader.name == expected
    with open_source(str(tmp_path / name), format="text") as source:
        assert source.reader.name == "text"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("in.jsonl", '{"prompt":"x"}'.encode("utf-16"), "UTF-16"),
        ("in.json", b'[\n{"prompt":"x"}\n]', "one object per line"),
    ],
)
def test_refused_files(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words), open_source(str(write(tmp_path, data, name))):
        pass


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"), open_source(str(tmp_path / "missing")):
        pass
    with pytest.raises(RequestError, match="regular file"), open_source("/dev/null"):
        pass


def test_limit(tmp_path: Path) -> None:
    path = write(tmp_path, b"\n".join(b'{"prompt":"x"}' for _ in range(10)))
    assert len(read(path, limit=3)) == 3


@settings(deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_a_row_a_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = write(tmp_path_factory.mktemp("bytes"), data)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [i for i, line in enumerate(lines, 1) if line.strip()]
    for format in ("jsonl", "text"):
        try:
            rows = read(path, format=format)  # type: ignore[arg-type]
        except RequestError:
            assert data.startswith((b"\xff\xfe", b"\xfe\xff", *PACKED))
            continue
        assert [row.line for row in rows] == expected


def test_names_that_are_no_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # which an empty name would be
    write(tmp_path, b"a prompt", "a.txt")
    with pytest.raises(RequestError, match="name is empty"):
        read_named("")
    monkeypatch.setattr("sys.stdin", None)  # what Python makes of a closed one
    with pytest.raises(RequestError, match="standard input is closed"):
        read_named("-")


def read_named(name: str) -> list[Row]:
    with open_source(name) as source:
        return list(source.rows())
