"""Compressed inputs: told by their bytes, read in little memory, damage named where it is."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from backports import zstd

from runtimes.errors import RequestError
from tests.app.batch.input.reading import codes, prompts, read, write

PACK = {"gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("packing", PACK)
def test_whatever_its_name(tmp_path: Path, packing: str) -> None:
    data, pack = b'\xef\xbb\xbf{"prompt":"x"}\n{"prompt":"y"}', PACK[packing]
    # Two members or frames in a row are one file, as `cat` makes them; one of zstd may be for
    # nothing but to be skipped.
    packed = pack(data[:20]) + pack(data[20:])
    if packing == "zstd":
        packed = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size" + packed
    for name in ("in.jsonl", "in.jsonl.gz", "in.zst", "in"):
        assert [row.task for row in read(write(tmp_path, packed, name))] == prompts("x", "y")


@pytest.mark.parametrize("packing", PACK)
def test_rows_before_the_damage_are_read(tmp_path: Path, packing: str) -> None:
    lines = [b'{"prompt":"%d"}\n' % (i * i * 7919) for i in range(12_000)]
    packed = PACK[packing](b"".join(lines))
    half = len(packed) // 2
    for damaged in (packed[:half], packed[:half] + b"\xff" * 400 + packed[half + 400 :]):
        *good, last = read(write(tmp_path, damaged))
        # Flipped bits may decode to other text for a while before the checksum or a code tells.
        assert 2_000 < codes(good).count(None) <= len(good) < 12_000
        assert codes([last]) == ["damaged_input"]
        assert last.line > good[-1].line
    with pytest.raises(RequestError, match="cannot be unpacked"):
        read(write(tmp_path, b"\x1f\x8b nothing", "in.gz"))


_COUNT = """
import sys
from quantize.quality.peak import peak_resident
from tests.app.batch.input.reading import codes, read
print([codes(read(path)) for path in sys.argv[1:]])
print(peak_resident() // 1024)
"""


def test_a_bomb_is_one_long_line(tmp_path: Path) -> None:
    """224 MB of one line from little: skipped in pieces, never held."""
    bombs = []
    for name, pack in PACK.items():
        bombs.append(write(tmp_path, pack(b'{"prompt":"') + pack(b"a" * 2**25) * 7, name))
        assert bombs[-1].stat().st_size < 2**20
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, *bombs], capture_output=True, text=True, check=True
    )
    found, peak = done.stdout.splitlines()
    assert found == "[['line_too_long'], ['line_too_long']]"
    assert int(peak) < 240 * 1024  # with all of the line, it is 300
