"""Tables hold what the records say, and can be read back by what others read them with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from app.batch.output.publish import write_output
from app.batch.output.records import FORMATS, output_format, suffix_format

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "index": 0, "n": 1, "response": 'with "quotes", commas\nand lines', "ok": True},
    {"id": "b", "index": 1, "n": 2, "tags": ["x", 1], "response": "é\U0001f600", "ok": False},
    {"id": "c", "index": 2, "n": None, "error": {"code": "e", "message": "half \ud83d"}},
]


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    FORMATS["csv"].write(path, lambda: RECORDS)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["response"] == RECORDS[0]["response"]
    assert rows[1]["tags"] == '["x", 1]'
    assert (rows[0]["ok"], rows[1]["n"], rows[2]["n"]) == ("true", "2", "")
    assert rows[2]["error.message"] == "half \\ud83d"


def test_json_lines_that_any_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    ids = ["\ud800", "a\udfff\ud83d", "é\U0001f600", "\\ud800"]
    FORMATS["jsonl"].write(path, lambda: [{"id": name, "field": {name: [name]}} for name in ids])
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["id"] for line in lines] == [
        "\\ud800",
        "a\\udfff\\ud83d",
        "é\U0001f600",
        "\\ud800",
    ]
    assert all(line["field"] == {line["id"]: [line["id"]]} for line in lines)
    json.dumps(lines, ensure_ascii=False).encode("utf-8")  # no half is left in them


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "out.parquet"
    FORMATS["parquet"].write(path, lambda: RECORDS)
    table = parquet.read_table(path)
    assert str(table.schema.field("n").type) == "int64"
    rows = table.to_pylist()
    assert [row["response"] for row in rows] == [r.get("response") for r in RECORDS]
    assert [row["ok"] for row in rows] == [True, False, None]
    assert rows[1]["tags"] == '["x", 1]'
    assert rows[2]["error.message"] == "half \\ud83d"


@pytest.mark.parametrize(
    ("name", "wanted", "requests", "expected"),
    [
        ("out.csv", "auto", 10, "csv"),
        ("out.PARQUET", "auto", 0, "parquet"),
        ("out.jsonl", "auto", 10, "openai"),
        ("out.jsonl", "auto", 0, "jsonl"),
        ("out", "auto", 0, "jsonl"),
        ("out.csv", "openai", 0, "openai"),
        ("out.jsonl", "jsonl", 10, "jsonl"),
    ],
)
def test_the_form_of_the_output(name: str, wanted: str, requests: int, expected: str) -> None:
    assert output_format(wanted, Path(name), requests, rows=10).name == expected
    assert suffix_format(Path("a.b.csv")).name == "csv"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    out, real = tmp_path / "out.jsonl", tmp_path / "disk" / "real.jsonl"
    out.symlink_to(real)
    for name in ("a", "b"):
        records = [{"id": name}]
        write_output(out, FORMATS["jsonl"], records.copy, "")
        assert out.is_symlink()
        assert real.read_text() == f'{{"id":"{name}"}}\n'
    assert list((tmp_path / "disk").iterdir()) == [real]
