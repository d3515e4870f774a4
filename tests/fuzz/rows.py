"""Inputs of `ingot batch` in every format, mostly wrong: requests, rows, tables, texts, folders."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from app.batch.input.prompting import Prompting
from app.batch.input.scan import scan
from app.batch.input.source import open_source
from app.batch.journal.journal import Entries
from app.batch.spec import InputOptions
from runtimes.errors import IngotError
from tests.app.batch.input.reading import BAD_LINES, REFUSED
from tests.fuzz import bodies
from tests.fuzz.cases import Case, built, loop
from tests.fuzz.commands import ingot
from tests.fuzz.mutate import TEXTS, VALUES, damaged, dumped, mutated, strange

_ROWS = VALUES["rows"]


def _jsonl(random: Random) -> bytes:
    made = bodies.rows(random) if random.random() < 0.5 else [*_ROWS]
    made += [row for row, *_ in random.choices(REFUSED, k=random.randrange(4))]
    if random.random() < 0.7:
        made = [mutated(one, random, _ROWS) if random.random() < 0.4 else one for one in made]
    lines = [dumped(one, random) for one in made]
    lines += random.choices([*BAD_LINES], k=random.randrange(2))
    return random.choice((b"\n", b"\r\n", b"\n\n")).join(lines)


def _csv(random: Random) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=random.choice(",;\t|"), quoting=random.choice((0, 1)))
    writer.writerow(["id", "prompt", "schema", "priority"][: random.randrange(1, 5)])
    for _ in range(random.randrange(6)):
        cells = [
            random.choice(("x", "5", *TEXTS))[:5000] for _ in range(random.choice((1, 4, 4, 9)))
        ]
        with contextlib.suppress(csv.Error):
            writer.writerow(cells)
    return out.getvalue().encode("utf-8", "surrogatepass")


def _parquet(random: Random) -> bytes:
    columns: dict[str, Any] = {"id": [1, 2, None], "prompt": ["a", None, "b"]}
    extra = (
        [1.5, None, float("nan")], [b"\xff", b"", None], [[1], [], None],
        [{"a": 1}, None, {"a": 2}], ["high", "0", "x"], [True, None, False], [2**62, -1, 0],
    )  # fmt: skip
    for name in random.sample(("schema", "priority", "messages", "prompt", "x"), 2):
        columns[name] = random.choice(extra)
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def _text(random: Random) -> bytes:
    return "\n".join(random.choice(TEXTS) for _ in range(5)).encode("utf-8", "surrogatepass")


def _folder(case: Case) -> Path:
    """A folder of texts, with what a folder may have beside."""
    random, folder = case.random, case.folder / "texts"
    folder.mkdir()
    names = (
        "a.txt",
        "b.md",
        ".hidden",
        "sub/c.txt",
        "d.json",
        "x\x1b[2J.txt",
        "\udcff.txt",
        "e" * 200,
    )
    for name in random.sample(names, 4):
        with contextlib.suppress(OSError):
            case.write(f"texts/{name}", random.choice(TEXTS))
    if random.random() < 0.3:
        (folder / "link.txt").symlink_to(
            random.choice(("/dev/zero", "..", "missing", "/etc/hosts"))
        )
    if random.random() < 0.2:
        os.mkfifo(folder / "pipe.txt")
    return folder


def _input(case: Case) -> Path:
    random = case.random
    kind = random.choice(("jsonl", "jsonl", "jsonl", "csv", "parquet", "txt", "folder"))
    case.figures[kind] += 1
    if kind == "folder":
        return _folder(case)
    data = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet, "txt": _text}[kind](random)
    if random.random() < 0.3:
        data = damaged(data, random)
    if random.random() < 0.15:
        data = random.choice((gzip.compress, zstd.compress))(data)
        data = damaged(data, random) if random.random() < 0.3 else data
    wrong = random.choice(("jsonl", "csv", "parquet", "txt", "json", "gz"))
    return case.write(f"in.{kind if random.random() < 0.8 else wrong}", data)


def one(case: Case) -> None:
    random, path = case.random, _input(case)
    kind = random.choice(("generate", "generate", "generate", "score", "classify", "embed"))
    options = InputOptions(
        field=random.choice((None, None, "prompt", "a.b")),
        json_schema_field=random.choice((None, None, "schema")),
        priority_field=random.choice((None, None, "priority")),
        task=kind,  # type: ignore[arg-type]
    )
    prompting = Prompting(options)
    with contextlib.suppress(IngotError), open_source(str(path), prompting) as source:
        found = scan(source, Entries())
        case.figures["rows"] += found.rows
        case.figures["invalid"] += found.invalid
        json.dumps(found.notes(source.name))
    if case.number % 12 == 0:
        model = built() / "pebble-q8_0.gguf"
        more = random.choice(
            ((), ("--json",), ("--task", kind), ("--field", str(strange(random))[:50]))
        )
        ingot(case, "batch", path, "--model", model, "--context", 128, "--dry-run", *more)


def run(seconds: float, seed: int, count: int | None = None) -> dict[str, int]:
    return loop("rows", one, seconds, seed, count)
