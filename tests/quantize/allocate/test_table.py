"""A table on the disk: as it was written, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize.allocate.solve import TypeChoice, TypeTable, Unit, read_table, write_table
from quantize.errors import ToolError

UNITS = (
    Unit(
        "blk.0.attn_q.weight",
        1,
        2,
        32,
        (TypeChoice("q8_0", 68, 1e-4), TypeChoice("q4_0", 36, 1e-2)),
    ),
)


def test_a_table_is_read_as_it_was_written(tmp_path: Path):
    table = TypeTable(UNITS, 4096, "text.txt")
    write_table(tmp_path / "t.json", table)
    assert read_table(tmp_path / "t.json") == table
    total = table.total({"blk.0.attn_q.weight": "q4_0"})
    assert (total.bytes, total.kl) == (36, 1e-2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("0.01", "0.001"),
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda text: json.dumps({**json.loads(text), "sha256": None}),
    ],
)
def test_a_table_that_was_changed_is_refused(tmp_path: Path, damage):
    path = tmp_path / "t.json"
    write_table(path, TypeTable(UNITS, 4096, "text.txt"))
    path.write_text(damage(path.read_text()))
    with pytest.raises(ToolError, match=r"t\.json was changed or damaged.*delete it"):
        read_table(path)
