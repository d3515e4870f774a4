"""CSV and Parquet: a row each, its columns by name."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path

import pytest

from app.openai.task import Task
from runtimes.errors import RequestError
from tests.app.batch.input.reading import codes, prompts, read, write


def test_csv_rows_quotes_and_lines(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfid,prompt,note\r\na,"hello, ""you""\r\nthere",1\r\n\r\n,,\r\nb,plain,2'
    rows = read(write(tmp_path, data, "in.csv"))
    assert [(r.id, r.line, r.where) for r in rows] == [("a", 2, "line 2"), ("b", 6, "line 6")]
    assert [row.task for row in rows] == prompts('hello, "you"\r\nthere', "plain")
    assert rows[1].fields == {"id": "b", "prompt": "plain", "note": "2"}
    for delimiter in ";\t":
        data = f"question{delimiter}n\nhi, you{delimiter}1\n".encode()
        [row] = read(write(tmp_path, data, "in.csv"), field="question")
        assert [row.task] == prompts("hi, you")


def test_a_bad_csv_row_costs_no_other(tmp_path: Path) -> None:
    data = (
        b"id,prompt\n"
        b"1,\xff\n"
        b"2,x,y\n"
        b'3,"never closed\n'
        b"4,fine\n"
        b'5,"closed"wrong\n'
        b'6,"six"\n'
        b"7\n"
        b"8,\x00\n"
        b"9,nine\n"
    )
    rows = read(write(tmp_path, data, "in.csv"))
    assert [row.line for row in rows] == list(range(2, 11))
    assert codes(rows) == [
        "invalid_utf8", "invalid_csv", "invalid_csv", None, "invalid_csv", None, "invalid_csv",
        None, None,
    ]  # fmt: skip
    # Of a row with too many or too few cells the id is known still.
    assert [row.id for row in rows if row.line in (3, 8)] == ["2", "7"]
    for header, words in (
        (b"a,a", "two columns called 'a'"),
        (b",", "must name the columns"),
        (b"\xff,b", "does not name columns"),
        (b'"a,b', "does not name columns"),
    ):
        with pytest.raises(RequestError, match=words):
            read(write(tmp_path, header + b"\n1,2\n", "in.csv"))


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    columns = {
        "prompt": ["one", "two", None],
        "turns": [["a", "b"], [], None],
        "at": [datetime.datetime(2026, 1, 2, 3)] * 3,
        "score": [0.5, float("nan"), float("inf")],
        "price": [decimal.Decimal("1.50")] * 3,
        "raw": [b"\xff"] * 3,
        # Times that Python cannot hold
        "exact": arrow.array([1, None, 1], arrow.timestamp("ns")),
        "took": arrow.array([1, None, 1], arrow.duration("ns")),
        "far": arrow.array([2**60, None, 1], arrow.timestamp("ms")),
    }
    write_table(arrow.table(columns), tmp_path / "in.parquet", row_group_size=2)
    return tmp_path / "in.parquet"


def test_parquet_rows(parquet: Path) -> None:
    rows = read(parquet)
    assert [row.where for row in rows] == ["row 1", "row 2", "row 3"]
    assert codes(rows) == [None, None, "wrong_type"]
    fields = dict(rows[0].fields)
    assert str(fields.pop("exact")).endswith("00:00:00.000000001")
    assert isinstance(fields.pop("far"), str)
    assert fields == {
        "prompt": "one",
        "turns": ["a", "b"],
        "at": "2026-01-02T03:00:00",
        "score": 0.5,
        "price": "1.50",
        "raw": "\ufffd",
        "took": "1",
    }
    assert [row.fields["score"] for row in rows[1:]] == [None, None]
    assert [rows[1].fields["took"], rows[1].fields["exact"]] == [None, None]
    assert read(parquet, field="turns")[0].task == Task((), ("a", "b"))
    # By its bytes, where the name says nothing.
    assert codes(read(parquet.rename(parquet.with_name("data")))) == [None, None, "wrong_type"]


def test_parquet_that_cannot_be_read(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    whole = parquet.read_bytes()
    twice = parquet.with_name("twice.parquet")
    write_table(pyarrow.table([["a"], ["b"]], names=["prompt", "prompt"]), twice)
    for data, words in (
        (whole[:-20], "not a complete Parquet file"),
        (whole[:4] + b"\0" * 60 + whole[64:], "damaged after row 0"),
        (twice.read_bytes(), "two columns called 'prompt'"),
    ):
        parquet.write_bytes(data)
        with pytest.raises(RequestError, match=words):
            read(parquet)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RequestError, match=r"pip install 'ingot\[parquet\]'"):
        read(parquet)
