"""Files of rows: every line becomes a row or says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.batch.input import lines as lines_module
from app.batch.input.prompting import Prompting
from app.batch.input.source import open_source
from app.batch.spec import InputOptions
from runtimes.errors import RequestError
from tests.app.batch.input.reading import BAD_LINES, codes, prompts, read, write

# How compressed files, archives and other formats begin.
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh9", b"\xfd7zXZ", b"GGUF", b"%PDF-")


def test_a_bad_line_is_one_bad_row(tmp_path: Path) -> None:
    good = b'{"prompt":"x"}'
    rows = read(write(tmp_path, b"\n".join(line for bad in BAD_LINES for line in (bad, good))))
    assert codes(rows[::2]) == [*BAD_LINES.values()]
    assert [row.task for row in rows[1::2]] == prompts("x") * len(BAD_LINES)
    [row] = read(write(tmp_path, b'{"broken\n'))
    assert row.problem is not None
    assert row.problem.message == "not JSON: Unterminated string starting at column 2"


def test_rows_lines_and_ids(tmp_path: Path) -> None:
    long = "word " * 2**20
    data = (
        b'\xef\xbb\xbf{"id":"a","prompt":"x"}\n\n  \n{"prompt":"y"}\r\n{"id":"a","prompt":"%s"}'
        % long.encode()
    )
    rows = read(write(tmp_path, data))
    assert [(row.index, row.line, row.id) for row in rows] == [(0, 1, "a"), (1, 4, 1), (2, 5, "a")]
    assert [row.task for row in rows] == prompts("x", "y", long)
    assert len(read(tmp_path / "in.jsonl", limit=2)) == 2


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    data = '\ufefffirst\n\n{"not": "json here"}\nlast é'
    rows = read(write(tmp_path, data.encode(), "in.txt"))
    assert [row.task for row in rows] == prompts("first", '{"not": "json here"}', "last é")
    assert [row.line for row in rows] == [1, 3, 4]


def test_a_line_too_long_to_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    long = b'{"prompt":"' + b"x" * 5000 + b'"}\n'
    fits = b'{"prompt":"' + b"x" * (1000 - 13) + b'"}\n'
    assert len(fits) == 1001
    rows = read(write(tmp_path, long + fits + b'{"prompt":"y"}\n' + long.rstrip()))
    assert [row.line for row in rows] == [1, 2, 3, 4]
    assert codes(rows) == ["line_too_long", None, None, "line_too_long"]


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
    path = str(write(tmp_path, data, name))
    for asked, found in (("auto", expected), ("text", "text")):
        with open_source(path, Prompting(InputOptions(input_format=asked))) as source:
            assert source.reader.name == found


def test_refused_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # which an empty name would be
    write(tmp_path, '{"prompt":"x"}'.encode("utf-16"), "wide.jsonl")
    write(tmp_path, b'[\n{"prompt":"x"}\n]', "list.json")
    monkeypatch.setattr("sys.stdin", None)  # what Python makes of a closed one
    for name, words in (
        ("wide.jsonl", "UTF-16"),
        ("list.json", "one object per line"),
        ("missing", "no such file"),
        ("/dev/null", "regular file"),
        ("", "name is empty"),
        ("-", "standard input is closed"),
    ):
        with pytest.raises(RequestError, match=words):
            read(name)


@settings(max_examples=40)
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_a_row_a_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = write(tmp_path_factory.mktemp("bytes"), data)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [i for i, line in enumerate(lines, 1) if line.strip()]
    for format in ("jsonl", "text"):
        try:
            rows = read(path, input_format=format)
        except RequestError:
            assert data.startswith((b"\xff\xfe", b"\xfe\xff", *PACKED))
            continue
        assert [row.line for row in rows] == expected
