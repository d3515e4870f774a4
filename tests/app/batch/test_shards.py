"""Shards share out the rows, and merging gives back what one job would have written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input.readers import JSONL
from app.batch.input.source import Shard, Source
from app.batch.journal.journal import Journal, journal_path
from app.batch.journal.lines import END, RUN, run_note
from app.batch.output.merge import merge
from app.batch.output.publish import publish
from app.batch.output.records import FORMATS, RecordForm
from app.openai.answer import Answer
from runtimes.errors import RequestError
from tests.support import write_rows

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@given(st.lists(st.one_of(st.integers(), st.text()), max_size=40), st.integers(1, 9))
def test_every_row_is_in_one_shard(ids: list[int | str], count: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    assert all(sum(shard.has(name) for shard in shards) == 1 for name in ids)


def test_shards_are_about_as_large() -> None:
    shares = Counter(n for i in range(4000) for n in range(1, 5) if Shard(n, 4).has(f"row-{i}"))
    assert all(900 < share < 1100 for share in shares.values())
    for text in ("", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2", "1/9999999"):
        with pytest.raises(RequestError, match="I/N"):
            Shard.parse(text)


def make(
    folder: Path,
    name: str,
    shard: Shard | None = None,
    format: str = "jsonl",
    *,
    left: int = 0,
    model: str = "m",
    tags: dict[int, Any] | None = None,
    told: str | None = None,
) -> Path:
    """The output of a job that has answered every row with its prompt; its journal says that it is
    of the format ``told``."""
    tags = tags or {}
    rows = [{"id": f"r{i}", "prompt": f"p{i}"} for i in range(30)]
    tagged = [row | ({"tag": tags[i]} if i in tags else {}) for i, row in enumerate(rows)]
    path = write_rows(folder / "in.jsonl", tagged)
    source, out = Source(path, path.name, JSONL, shard=shard), folder / name
    with Journal(journal_path(out)) as journal:
        journal.begin({"fingerprint": model})
        mine = list(source.rows())
        values = {"invalid": 0, "reused": 0, "format": told or format, "input": "x"}
        said = str(shard) if shard else None
        journal.note(RUN, run_note(rows=len(mine), input_rows=30, shard=said, **values))
        for row in reversed(mine):
            answer = Answer(
                row.task.turns[0], finish_reason="stop", usage=USAGE, timings={}, created=1.0
            )
            journal.append(row.key, row.index, answer)
        source.seen = source.stamp()
        publish(source, journal, out, RecordForm(FORMATS[format], model))
        journal.note(END, {"unfinished": left})
    return out


def parts_of(folder: Path, count: int, format: str = "jsonl", **more: Any) -> list[Path]:
    suffix = {"openai": "jsonl"}.get(format, format)
    shards = [Shard(number, count) for number in range(1, count + 1)]
    return [make(folder, f"p{s.number}.{suffix}", s, format, **more) for s in shards]


TAGS: list[Any] = [["a", 1], "x", 3, None, {"b": "é"}, "\ud800", 4, 5]


@pytest.mark.parametrize("format", ["jsonl", "openai", "csv", "parquet"])
def test_merged_parts_are_the_whole(tmp_path: Path, format: str) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    # A column that is JSON in one part only: of every type there, whole numbers in the others.
    tags = {i: tag if Shard(1, 3).has(f"r{i}") else i for i, tag in enumerate(TAGS)}
    more = {"tags": tags} if format == "parquet" else {}
    parts = parts_of(tmp_path, 3, format, **more)
    suffix = parts[0].suffix
    whole = make(tmp_path, f"whole{suffix}", None, format, **more)
    if "json" in suffix:  # as where rows are written as they finish
        parts[0].write_text("".join(reversed(parts[0].read_text().splitlines(keepends=True))))
    out = tmp_path / f"merged{suffix}"
    # As a pattern names them: with their journals.
    merged = merge(out, [parts[2], parts[0], journal_path(parts[0]), parts[1]])
    assert merged == {"rows": 30, "failed": 0, "parts": 3}
    assert out.read_bytes() == whole.read_bytes()


def test_what_does_not_fit_together_is_named(tmp_path: Path) -> None:
    one, two, three = (make(tmp_path, f"p{i}.jsonl", Shard(i, 3), "jsonl") for i in (1, 2, 3))
    out, alone = tmp_path / "out.jsonl", tmp_path / "alone.jsonl"
    alone.write_text("")

    def other(name: str, *shard: int, **more: Any) -> list[Path]:
        return [one, two, make(tmp_path, name, Shard(*shard) if shard else None, **more)]

    for to, parts, words in (
        (out, [two], "missing: 1/3, 3/3"),
        (out, [one, one, two, three], r"p1\.jsonl and .*p1\.jsonl are both part 1/3"),
        (one, [one, two, three], "one of the parts"),
        (journal_path(two), [one, two, three], "one of the parts"),
        (out, other("q3.jsonl", 3, 3, model="other"), "not of one job"),
        (out, other("q4.jsonl", 3, 4), "not of one job"),
        (out, other("q5.jsonl", 3, 3, left=2), "not finished"),
        (out, other("q6.jsonl", 3, 3, told="evil"), "of which format"),
        (out, other("w.jsonl"), "not made with --shard"),
        (out, [one, two, alone], "copy both"),
    ):
        with pytest.raises(RequestError, match=words):
            merge(to, parts, replace=to != out)
    assert not out.exists()
    out.write_text("precious")
    with pytest.raises(RequestError, match="--fresh"):
        merge(out, [one, two, three])
    assert out.read_text() == "precious"
    assert merge(out, [one, two, three], replace=True)["rows"] == 30


def test_a_part_from_elsewhere_may_have_any_line(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, 2)
    whole = parts[1].read_bytes()
    for line in (
        b"[" * 100_000,
        b'{"index": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"index": 1' + b"0" * 30 + b"}",
        b'{"index": "0"}',
        b'{"index": 1e999}',
        b"[]",
        b"\xff",
        b'{"index": 0, "error": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ):
        parts[1].write_bytes(line + b"\n" + whole)
        with pytest.raises(RequestError, match=r"damaged|without the index|in no part"):
            merge(tmp_path / "out.jsonl", parts)
    parts[1].write_bytes(whole[whole.index(b"\n") + 1 :])
    with pytest.raises(RequestError, match="is in no part"):
        merge(tmp_path / "out.jsonl", parts)
    for format in ("jsonl", "openai", "csv"):
        parts = parts_of(tmp_path, 2, format)
        data = parts[1].read_bytes()
        parts[1].write_bytes(data[:-20] + b"\xff" + data[-19:])
        with pytest.raises(RequestError, match=r"p2\..* is damaged"):
            merge(tmp_path / f"out{parts[0].suffix}", parts)
    assert not [*tmp_path.glob("out*")]
