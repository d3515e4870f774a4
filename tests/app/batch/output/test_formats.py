"""Tables hold what the records say, and can be read back by what others read them with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from app.batch.output.records import FORMATS, output_format, suffix_format

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "index": 0, "n": 1, "response": 'with "quotes", commas\nand lines', "ok": True},
    {"id": "b", "index": 1, "n": 2, "tags": ["x", 1], "response": "é\U0001f600", "ok": False},
    {"id": "c", "index": 2, "n": None, "error": {"code": "e", "message": "half \ud83d"}},
]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_tables(tmp_path: Path, format: str) -> None:
    path = tmp_path / "out"
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        FORMATS[format].write(path, lambda: RECORDS)
        table = parquet.read_table(path)
        assert str(table.schema.field("n").type) == "int64"
        rows, none, ok, two = table.to_pylist(), None, [True, False, None], 2
    else:
        FORMATS[format].write(path, lambda: RECORDS)
        with path.open(encoding="utf-8", newline="") as file:
            rows, none, ok, two = list(csv.DictReader(file)), "", ["true", "false", ""], "2"
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert [row["response"] or None for row in rows] == [r.get("response") for r in RECORDS]
    assert [row["ok"] for row in rows] == ok
    assert (rows[1]["tags"], rows[1]["n"], rows[2]["n"]) == ('["x", 1]', two, none)
    assert rows[2]["error.message"] == "half \\ud83d"


def test_json_lines_that_any_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    ids = ["\ud800", "a\udfff\ud83d", "é\U0001f600", "\\ud800"]
    FORMATS["jsonl"].write(path, lambda: [{"id": name, "field": {name: [name]}} for name in ids])
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    said = ["\\ud800", "a\\udfff\\ud83d", "é\U0001f600", "\\ud800"]  # no half is left in them
    assert lines == [{"id": name, "field": {name: [name]}} for name in said]


def test_the_form_of_the_output() -> None:
    for name, wanted, requests, expected in (
        ("out.csv", "auto", 10, "csv"),
        ("out.PARQUET", "auto", 0, "parquet"),
        ("out.jsonl", "auto", 10, "openai"),
        ("out.jsonl", "auto", 0, "jsonl"),
        ("out", "auto", 0, "jsonl"),
        ("out.csv", "openai", 0, "openai"),
        ("out.jsonl", "jsonl", 10, "jsonl"),
    ):
        assert output_format(wanted, Path(name), requests, rows=10).name == expected
    assert suffix_format(Path("a.b.csv")).name == "csv"
