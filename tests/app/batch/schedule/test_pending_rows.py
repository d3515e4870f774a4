"""What the journal lacks is computed once, the most urgent first."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.input import readers
from app.batch.input.lines import Raw, zstd
from app.batch.input.prompting import Prompting
from app.batch.input.readers import JSONL
from app.batch.input.scan import scan
from app.batch.input.source import Row, Source
from app.batch.journal.journal import Entries
from app.batch.schedule.pending_rows import pending_rows
from app.batch.spec import InputOptions
from runtimes.request import Priority


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(list(Priority))), min_size=1, max_size=12
    ),
    done=st.sets(st.integers(0, 11)),
)
def test_every_row_once_the_most_urgent_first(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, Priority]], done: set[int]
) -> None:
    path: Path = tmp_path_factory.mktemp("rows") / "in.jsonl"
    lines = ({"prompt": f"p{text}", "urgency": int(level)} for text, level in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Source(path, path.name, JSONL, Prompting(InputOptions(priority_field="urgency")))
    entries, keys = Entries(), []
    for row in source.rows():
        keys.append(row.key)
        if row.index in done:
            entries.add(row.key, row.index, row.index, True)
    found, scanned = [], scan(source, entries)
    for row in pending_rows(source, scanned):
        found.append(row)
        entries.add(row.key, row.index, 100 + row.index, True)  # as the job does
    assert len({row.index for row in found}) == len(found)
    assert len(entries) == len(rows)  # as many records as rows, so that each gets one
    assert sorted(entries.keys) == sorted(int.from_bytes(key[:8], "big") for key in keys)
    urgencies = [row.task.priority for row in found]
    assert urgencies == sorted(urgencies)


TEXTS = ["one", "two\nlines", "three, with a comma", "  four ", "fünf", "six", "seven", "eight"]


def _inputs(folder: Path) -> Iterator[Path]:
    """The same rows in every format, with blank lines and a row that is not valid among them."""
    import pyarrow
    from pyarrow import parquet

    rows = [{"prompt": text, "urgency": at % 4} for at, text in enumerate(TEXTS)]
    lines = [json.dumps(row).encode() for row in rows]
    table = io.StringIO()
    written = csv.DictWriter(table, ["prompt", "urgency"])
    written.writeheader()
    written.writerows(rows[:3])
    table.write('"never closed\n\n')
    written.writerows(rows[3:])
    texts = "\n\n".join(text.replace("\n", " ") for text in TEXTS)
    files = {
        "in.jsonl": b"\xef\xbb\xbf" + b"\n\n".join([*lines[:3], b"{", *lines[3:]]),
        "in.csv": table.getvalue().encode(),
        "in.txt": texts.encode(),
    }
    for name, data in files.items():
        for suffix, pack in (("", bytes), (".gz", gzip.compress), (".zst", zstd.compress)):
            (folder / (name + suffix)).write_bytes(pack(data))
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "in.parquet", row_group_size=3)
    (folder / "folder" / "a").mkdir(parents=True)
    for at, text in enumerate(TEXTS):
        (folder / "folder" / ("a" if at % 3 else "") / f"{at}.txt").write_text(text)
    yield from folder.glob("in.*")
    yield folder / "folder"


def test_rows_of_every_format_are_found_again_by_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, make = list[int](), Source._row

    def counted(source: Source, index: int, raw: Raw) -> Row:
        built.append(index)
        return make(source, index, raw)

    monkeypatch.setattr(Source, "_row", counted)
    monkeypatch.setattr(readers, "_BATCH_ROWS", 2)
    pytest.importorskip("pyarrow")
    for path in _inputs(tmp_path):
        plain = path.name.startswith(("in.txt", "folder"))
        prompting = Prompting(InputOptions(priority_field=None if plain else "urgency"))
        source = Source(path, path.name, readers.detect(path, path.name, "auto"), prompting)
        rows = [row for row in source.rows() if row.problem is None]
        assert len(rows) == len(TEXTS), path.name
        entries = Entries()
        for row in rows[1::3]:
            entries.add(row.key, row.index, row.index, True)
        scanned = scan(source, entries)
        built.clear()
        pending = list(pending_rows(source, scanned))
        wanted = [row for at, row in enumerate(rows) if at % 3 != 1]
        by_level = sorted(wanted, key=lambda row: row.task.priority)
        assert sorted(pending, key=lambda row: row.index) == wanted, path.name
        assert [row.task.priority for row in pending] == [row.task.priority for row in by_level]
        # No other row is parsed, and none of these twice.
        assert sorted(built) == [row.index for row in wanted]
