"""Compressed inputs: told by their bytes, read in little memory, damage named where it is."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from backports import zstd

from app.batch.input.source import Row, open_source
from app.openai.task import Task
from runtimes.errors import RequestError

PACK = {"gzip": gzip.compress, "zstd": zstd.compress}


def read(path: Path) -> list[Row]:
    with open_source(str(path)) as source:
        return list(source.rows())


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.zst", "in"])
def test_whatever_its_name(tmp_path: Path, packing: str, name: str) -> None:
    data = b'\xef\xbb\xbf{"prompt":"x"}\n{"prompt":"y"}'
    # Two members or frames in a row are one file, as `cat` makes them.
    packed = PACK[packing](data[:20]) + PACK[packing](data[20:])
    (tmp_path / name).write_bytes(packed)
    assert [row.task for row in read(tmp_path / name)] == [Task((), ("x",)), Task((), ("y",))]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_rows_before_the_damage_are_read(tmp_path: Path, packing: str, damage: str) -> None:
    lines = [b'{"prompt":"%s"}\n' % str(i * i * 7919).encode() for i in range(30_000)]
    packed = bytearray(PACK[packing](b"".join(lines)))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2 : len(packed) // 2 + 400] = b"\xff" * 400
    path = tmp_path / "in.jsonl"
    path.write_bytes(packed)
    rows = read(path)
    *good, last = rows
    assert 5_000 < len(good) < 30_000
    assert last.problem is not None
    # Flipped bits may decode to other text for a while before the checksum or a code tells.
    assert sum(isinstance(row.task, Task) for row in good) > 5_000
    assert last.problem.code == "damaged_input"
    assert last.line >= good[-1].line + 1


def test_nothing_that_could_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    path.write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(RequestError, match="cannot be unpacked"):
        read(path)


_COUNT = """
import sys
from app.batch.input.source import open_source
with open_source(sys.argv[1]) as source:
    print([row.problem.code for row in source.rows()])
from quantize.quality.peak import peak_resident
print(peak_resident() // 1024)
"""


@pytest.mark.parametrize("packing", PACK)
def test_a_bomb_is_one_long_line(tmp_path: Path, packing: str) -> None:
    """224 MB of one line from little: skipped in pieces, never held."""
    pieces = PACK[packing](b"a" * 2**25)
    path = tmp_path / "in.jsonl"
    path.write_bytes(PACK[packing](b'{"prompt":"') + pieces * 7)
    assert path.stat().st_size < 2**20
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, str(path)], capture_output=True, text=True, check=True
    )
    codes, peak = done.stdout.splitlines()
    assert codes == "['line_too_long']"
    assert int(peak) < 240 * 1024  # with all of the line, it is 300


def test_a_frame_that_is_to_be_skipped_may_come_first(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl.zst"
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path.write_bytes(skipped + zstd.compress(b'{"prompt":"x"}\n'))
    assert [row.task for row in read(path)] == [Task((), ("x",))]
