"""Shards share out the rows, and merging gives back what one job would have written."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.readers import JSONL
from app.batch.input.scan import scan
from app.batch.input.source import Shard, Source
from app.batch.journal.journal import Entries, Journal, journal_path
from app.batch.journal.lines import END, RUN, end_note, run_note
from app.batch.output.merge import merge
from app.batch.output.publish import publish
from app.batch.output.records import FORMATS, RecordForm, output_format
from app.openai.answer import Answer
from runtimes.errors import RequestError

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@given(st.lists(st.one_of(st.integers(), st.text()), max_size=40), st.integers(1, 9))
def test_every_row_is_in_one_shard(ids: list[int | str], count: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    assert all(sum(shard.has(name) for shard in shards) == 1 for name in ids)


def test_shards_are_about_as_large() -> None:
    shares = Counter(n for i in range(4000) for n in range(1, 5) if Shard(n, 4).has(f"row-{i}"))
    assert all(900 < share < 1100 for share in shares.values())


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1/9999999"]
)
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(RequestError, match="I/N"):
        Shard.parse(text)


def make(
    folder: Path,
    name: str,
    shard: Shard | None,
    format: str,
    left: int = 0,
    model: str = "m",
    tags: dict[str, Any] | None = None,
) -> Path:
    """The output of a job that has answered every row with its prompt."""
    path = folder / "in.jsonl"
    lines = [{"id": f"r{i}", "prompt": f"p{i}"} for i in range(30)]
    more = tags or {}
    lines = [line | ({"tag": more[line["id"]]} if line["id"] in more else {}) for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Source(path, path.name, JSONL, shard=shard)
    out = folder / name
    with Journal(journal_path(out)) as journal:
        journal.begin({"fingerprint": model})
        rows = list(source.rows())
        values: dict[str, Any] = {"invalid": 0, "reused": 0, "format": format, "input": "x"}
        note = run_note(
            rows=len(rows), input_rows=30, shard=str(shard) if shard else None, **values
        )
        journal.note(RUN, note)
        for row in reversed(rows):
            answer = Answer(row.task.turns[0], finish_reason="stop", usage=USAGE)
            full = replace(answer, timings={"ttft_s": 0.5}, created=1.0)
            journal.append(row.key, row.index, full)
        source.seen = source.stamp()
        publish(source, journal, out, RecordForm(FORMATS[format], model))
        journal.note(END, end_note(left))
    return out


def test_all_parts_of_a_mixed_input_have_one_form(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    messages = {"messages": [{"role": "user", "content": "x"}]}
    openai = {"method": "POST", "url": "/v1/chat/completions", "body": messages}
    rows = [{"custom_id": f"r{i}", **openai} if i % 3 else {"prompt": "x"} for i in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [
        scan(Source(path, path.name, JSONL, shard=Shard(number, 9)), Entries())
        for number in range(1, 10)
    ]
    assert len({one.rows for one in found}) > 1
    out = tmp_path / "out.jsonl"
    formats = {output_format("auto", out, one.requests, one.input_rows).name for one in found}
    assert formats == {"openai"}


@pytest.mark.parametrize("format", ["jsonl", "openai", "csv", "parquet"])
def test_merged_parts_are_the_whole(tmp_path: Path, format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    suffix = {"csv": "csv", "parquet": "parquet"}.get(format, "jsonl")
    whole = make(tmp_path, f"whole.{suffix}", None, format)
    parts = [make(tmp_path, f"p{i}.{suffix}", Shard(i, 3), format) for i in (3, 1, 2)]
    assert min(len(part.read_bytes()) for part in parts) > 0
    out = tmp_path / f"merged.{suffix}"
    merged = merge(out, parts)
    assert (merged.rows, merged.failed) == (30, 0)
    assert out.read_bytes() == whole.read_bytes()


def test_a_column_that_is_json_in_one_part_only(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tags: list[Any] = [["a", 1], "x", 3, None, {"b": "é"}, "\ud800", 4, 5]
    first = [i for i in range(len(tags)) if Shard(1, 2).has(f"r{i}")]
    # Of every type in the first part, whole numbers only in the second.
    values = {f"r{i}": tags[i] if i in first else i for i in range(len(tags))}
    whole = make(tmp_path, "whole.parquet", None, "parquet", tags=values)
    parts = [make(tmp_path, f"p{i}.parquet", Shard(i, 2), "parquet", tags=values) for i in (1, 2)]
    out = tmp_path / "merged.parquet"
    merge(out, parts)
    assert out.read_bytes() == whole.read_bytes()


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    for format, suffix in (("jsonl", "jsonl"), ("openai", "jsonl"), ("csv", "csv")):
        folder = tmp_path / format
        folder.mkdir()
        parts = [make(folder, f"p{i}.{suffix}", Shard(i, 2), format) for i in (1, 2)]
        data = parts[1].read_bytes()
        parts[1].write_bytes(data[:-20] + b"\xff" + data[-19:])
        with pytest.raises(RequestError, match=r"p2\..* is damaged"):
            merge(folder / f"out.{suffix}", parts)
        assert not (folder / f"out.{suffix}").exists()


def test_parts_in_the_order_of_finishing_are_put_in_order(tmp_path: Path) -> None:
    whole = make(tmp_path, "whole.jsonl", None, "jsonl")
    parts = [make(tmp_path, f"p{i}.jsonl", Shard(i, 2), "jsonl") for i in (1, 2)]
    lines = parts[0].read_text().splitlines(keepends=True)
    parts[0].write_text("".join(reversed(lines)))
    merge(tmp_path / "merged.jsonl", parts)
    assert (tmp_path / "merged.jsonl").read_bytes() == whole.read_bytes()


def test_what_does_not_fit_together_is_named(tmp_path: Path) -> None:
    one, two, three = (make(tmp_path, f"p{i}.jsonl", Shard(i, 3), "jsonl") for i in (1, 2, 3))
    out = tmp_path / "out.jsonl"
    with pytest.raises(RequestError, match="missing: 1/3, 3/3"):
        merge(out, [two])
    with pytest.raises(RequestError, match=r"p1\.jsonl and .*p1\.jsonl are both part 1/3"):
        merge(out, [one, one, two, three])
    with pytest.raises(RequestError, match="one of the parts"):
        merge(one, [one, two, three])
    with pytest.raises(RequestError, match="one of the parts"):
        merge(journal_path(two), [one, two, three], replace=True)
    with pytest.raises(RequestError, match="not of one job"):
        merge(out, [one, two, make(tmp_path, "q3.jsonl", Shard(3, 3), "jsonl", model="other")])
    with pytest.raises(RequestError, match="not of one job"):
        merge(out, [one, two, make(tmp_path, "q4.jsonl", Shard(3, 4), "jsonl")])
    with pytest.raises(RequestError, match="not finished"):
        merge(out, [one, two, make(tmp_path, "q5.jsonl", Shard(3, 3), "jsonl", left=2)])
    with pytest.raises(RequestError, match="not made with --shard"):
        merge(out, [one, make(tmp_path, "w.jsonl", None, "jsonl")])
    (tmp_path / "alone.jsonl").write_text("")
    with pytest.raises(RequestError, match="copy both"):
        merge(out, [one, two, tmp_path / "alone.jsonl"])
    lines = three.read_text().splitlines(keepends=True)
    three.write_text("".join(lines[1:]))
    with pytest.raises(RequestError, match="is in no part"):
        merge(out, [one, two, three])
    assert not out.exists()
    three.write_text("".join(lines))
    out.write_text("precious")
    with pytest.raises(RequestError, match="--fresh"):
        merge(out, [one, two, three])
    assert out.read_text() == "precious"
    assert merge(out, [one, two, three], replace=True).rows == 30


def test_journals_that_a_pattern_names_too_are_no_parts(tmp_path: Path) -> None:
    for number in (1, 2):
        make(tmp_path, f"p{number}.jsonl", Shard(number, 2), "jsonl")
    named = sorted(tmp_path.glob("p*.jsonl"))
    assert len(named) == 4
    assert merge(tmp_path / "merged.jsonl", named).parts == 2


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"index": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"index": 1' + b"0" * 30 + b"}",
        b'{"index": "0"}',
        b'{"index": 1e999}',
        b"[]",
        b"\xff",
        b'{"index": 0, "error": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
    ids=range(8),
)
def test_a_part_from_elsewhere_may_have_any_line(tmp_path: Path, line: bytes) -> None:
    one, two = (make(tmp_path, f"p{n}.jsonl", Shard(n, 2), "jsonl") for n in (1, 2))
    two.write_bytes(line + b"\n" + two.read_bytes())
    with pytest.raises(RequestError, match=r"damaged|without the index|in no part"):
        merge(tmp_path / "out.jsonl", [one, two])
    assert not (tmp_path / "out.jsonl").exists()


def test_a_part_of_an_unknown_format_is_told(tmp_path: Path) -> None:
    one = make(tmp_path, "p1.jsonl", Shard(1, 1), "jsonl")
    journal = journal_path(one)
    with Journal(journal) as log:
        note = run_note(rows=1, input_rows=1, invalid=0, reused=0, shard="1/1", format="evil")
        log.note(RUN, note)
        log.note(END, end_note(0))
    with pytest.raises(RequestError, match="of which format"):
        merge(tmp_path / "out.jsonl", [one])
