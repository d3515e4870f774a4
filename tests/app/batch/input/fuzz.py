"""`python -m tests.app.batch.input.fuzz MODEL [COUNT [SEED]]`: so many malformed files, each
through the command as JSONL, CSV, text or Parquet, plain or packed, whole or cut off in its middle.

Prints how many rows were answered and how many named; ends at the first file where a valid row has
no answer, a bad one is not named by its line, or the command raises.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from backports import zstd

from app.cli.main import main
from tests.app.batch.input.malformed import Input, ten_megabytes, whole

_OPTIONS = ["--max-tokens", "2", "--quiet", "--threads", "1", "--context", "256"]


def run(model: str, source: Path, out: Path, *options: str) -> tuple[int, str]:
    """Exit code and messages of one command in this process."""
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown):
        code = main(["batch", str(source), str(out), "--model", model, *_OPTIONS, *options])
    return code, shown.getvalue()


def given_file(random: random.Random) -> Input:
    """A file of a few lines; one in fifty has a line of ten megabytes."""
    given = whole(random, random.randrange(1, 12))
    if random.random() < 0.02:
        line, valid = ten_megabytes(random)
        end = b"" if given.data.endswith(b"\n") else b"\n"
        number = given.data.count(b"\n") + len(end) + 1
        given = Input(given.data + end + line, [*given.rows, (number, valid)], given.kinds)
    return given


def check(records: list[dict[str, object]], given: Input) -> Counter[str]:
    """Counts of rows answered and named; raises AssertionError."""
    assert len(records) == len(given.rows), (len(records), len(given.rows))
    counts: Counter[str] = Counter()
    for (number, valid), record in zip(given.rows, records, strict=True):
        error = record.get("error")
        assert bool(error) != valid, (number, valid, record)
        if isinstance(error, dict):
            assert str(error["message"]).startswith(f"line {number}: "), error
        counts["answered" if valid else "named"] += 1
    return counts


def broken(random: random.Random, data: bytes) -> bytes:
    """Something that need not be any file at all."""
    packed = random.choice((data, gzip.compress(data), zstd.compress(data)))
    match random.randrange(4):
        case 0:
            return packed[: random.randrange(len(packed) + 1)]
        case 1:
            at = random.randrange(len(packed) + 1)
            return packed[:at] + random.randbytes(8) + packed[at:]
        case 2:
            return b"id,prompt\r\n" + data.replace(b"{", b'"')
        case _:
            return random.choice((b"", b"\n\r\n \n", b"\xef\xbb\xbf", b"\x00" * 99, b"PAR1xxPAR1"))


def one(model: str, random: random.Random, folder: Path) -> Counter[str]:
    """One malformed input."""
    given = given_file(random)
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    if random.random() < 0.3:
        # What such a file means is open; that it ends in order is not.
        source = folder / random.choice(("in.jsonl", "in.csv", "in.txt", "in.parquet", "in"))
        source.write_bytes(broken(random, given.data))
        code, shown = run(model, source, out, "--limit", "20")
        assert code in (0, 1, 2), (code, shown)
        assert code != 2 or str(source) in shown, shown
        return Counter({"refused" if code == 2 else "read": 1})
    packing = random.choice((bytes, gzip.compress, zstd.compress))
    source.write_bytes(packing(given.data))
    code, shown = run(model, source, out)
    if code == 2:
        # No row of it has a prompt at all, which is told instead of an output.
        assert not any(valid for _, valid in given.rows), shown
        assert "no row of" in shown, shown
        return Counter({"refused": 1})
    assert code == int(not all(valid for _, valid in given.rows)), (code, shown)
    lines = out.read_text("utf-8").split("\n")
    return check([json.loads(line) for line in lines if line], given)


def fuzz(model: str, count: int, seed: int) -> Counter[str]:
    """All of them; raises AssertionError, with the input's number, at the first that is wrong."""
    counts: Counter[str] = Counter()
    for number in range(seed, seed + count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts += one(model, random.Random(number), Path(folder))
            except Exception as error:
                raise AssertionError(f"input {number} (its own seed): {error!r}") from error
        counts["inputs"] += 1
    return counts


if __name__ == "__main__":
    model, *numbers = sys.argv[1:]
    count, seed = (*map(int, numbers), *(500, 0)[len(numbers) :])
    sys.stdout.write(f"{dict(fuzz(model, count, seed))}\n")
