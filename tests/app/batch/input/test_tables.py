"""CSV and Parquet: a row each, its columns by name."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path

import pytest

from app.batch.input.prompting import Prompting
from app.batch.input.source import Row, open_source
from app.batch.spec import InputOptions
from app.openai.task import Task
from runtimes.errors import RequestError


def read(path: Path, field: str | None = None) -> list[Row]:
    with open_source(str(path), prompting=Prompting(InputOptions(field=field))) as source:
        return list(source.rows())


def write(tmp_path: Path, data: bytes, name: str = "in.csv") -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


def codes(rows: list[Row]) -> list[str | None]:
    return [row.problem and row.problem.code for row in rows]


def test_csv_rows_quotes_and_lines(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbfid,prompt,note\r\na,"hello, ""you""\r\nthere",1\r\n\r\n,,\r\nb,plain,2'
    rows = read(write(tmp_path, data))
    assert [(row.id, row.line, row.where) for row in rows] == [
        ("a", 2, "line 2"),
        ("b", 6, "line 6"),
    ]
    assert [row.task for row in rows] == [
        Task((), ('hello, "you"\r\nthere',)),
        Task((), ("plain",)),
    ]
    assert rows[1].fields == {"id": "b", "prompt": "plain", "note": "2"}


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
    rows = read(write(tmp_path, data))
    assert [row.line for row in rows] == list(range(2, 11))
    assert codes(rows) == [
        "invalid_utf8", "invalid_csv", "invalid_csv", None, "invalid_csv", None, "invalid_csv",
        None, None,
    ]  # fmt: skip
    # Of a row with too many or too few cells the id is known still.
    assert [row.id for row in rows if row.line in (3, 8)] == ["2", "7"]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(tmp_path: Path, delimiter: str) -> None:
    data = f"question{delimiter}n\nhi, you{delimiter}1\n".encode()
    (row,) = read(write(tmp_path, data), "question")
    assert row.task == Task((), ("hi, you",))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a,a\n1,2\n", "two columns called 'a'"),
        (b",\n1,2\n", "must name the columns"),
        (b"\xff,b\n1,2\n", "does not name columns"),
        (b'"a,b\n1,2\n', "does not name columns"),
    ],
)
def test_bad_headers(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(write(tmp_path, data))


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    import pyarrow
    from pyarrow.parquet import write_table

    table = pyarrow.table(
        {
            "prompt": ["one", "two", None],
            "turns": [["a", "b"], [], None],
            "at": [datetime.datetime(2026, 1, 2, 3)] * 3,
            "score": [0.5, float("nan"), float("inf")],
            "price": [decimal.Decimal("1.50")] * 3,
            "raw": [b"\xff"] * 3,
        }
    )
    write_table(table, tmp_path / "in.parquet", row_group_size=2)
    return tmp_path / "in.parquet"


def test_parquet_rows(parquet: Path) -> None:
    rows = read(parquet)
    assert [row.where for row in rows] == ["row 1", "row 2", "row 3"]
    assert codes(rows) == [None, None, "wrong_type"]
    assert rows[0].fields == {
        "prompt": "one",
        "turns": ["a", "b"],
        "at": "2026-01-02T03:00:00",
        "score": 0.5,
        "price": "1.50",
        "raw": "\ufffd",
    }
    assert [row.fields["score"] for row in rows[1:]] == [None, None]
    assert read(parquet, "turns")[0].task == Task((), ("a", "b"))
    # By its bytes, where the name says nothing.
    other = parquet.rename(parquet.with_name("data"))
    assert codes(read(other)) == [None, None, "wrong_type"]


def test_parquet_that_is_damaged(parquet: Path) -> None:
    whole = parquet.read_bytes()
    parquet.write_bytes(whole[:-20])
    with pytest.raises(RequestError, match="not a complete Parquet file"):
        read(parquet)
    parquet.write_bytes(whole[:4] + b"\0" * 60 + whole[64:])
    with pytest.raises(RequestError, match="damaged after row 0"):
        read(parquet)


def test_parquet_without_pyarrow(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RequestError, match=r"pip install 'ingot\[parquet\]'"):
        read(parquet)


def test_parquet_times_that_python_cannot_hold(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    columns = {
        "prompt": ["x", "y"],
        "at": arrow.array([1, None], arrow.timestamp("ns")),
        "took": arrow.array([1, None], arrow.duration("ns")),
        "far": arrow.array([2**60, None], arrow.timestamp("ms")),
    }
    parquet.write_table(arrow.table(columns), path)
    first, second = [row.fields for row in read(path)]
    assert str(first["at"]).endswith("00:00:00.000000001")
    assert [first["took"], second["took"], second["at"]] == ["1", None, None]
    assert isinstance(first["far"], str)


def test_parquet_with_two_columns_of_a_name_is_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    parquet.write_table(arrow.table([["a"], ["b"]], names=["prompt", "prompt"]), path)
    with pytest.raises(RequestError, match="two columns called 'prompt'"):
        read(path)
