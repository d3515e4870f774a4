"""The types of a file that was built for a target, in the quantize screen."""

import dataclasses
from pathlib import Path

import pytest
from textual.widgets import Static

from app.builds.results import read_result
from app.tui.app import IngotApp
from app.tui.widgets.quantize_files import FileTable, QuantizeResult, TypeMapView, TypesScreen
from quantize.manifest import Allocation, Manifest, load_manifest, write_manifest
from tests.app.tui.quantize_app import MANIFEST, open_screen
from tests.support import wait_until

TYPES = {
    "token_embd.weight": "q6_k",
    "output.weight": "f16",
    **{f"blk.{n}.attn_v.weight": "q8_0" if n % 2 else "iq4_nl" for n in range(6)},
    **{f"blk.{n}.ffn_down.weight": "q5_1" for n in range(5)},  # the last layer has none
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Measured files; the first of llama.cpp's is said to have been built for a target."""
    (tmp_path / "manifest.json").write_bytes(MANIFEST.read_bytes())
    known = load_manifest(tmp_path)
    built = next(entry for entry in known.files if entry.format == "gguf")
    found = dataclasses.replace(built, allocation=Allocation(TYPES, 0.0123, 2, 0.013, 0.0101))
    others = [entry for entry in known.files if entry is not built]
    write_manifest(tmp_path, Manifest(known.model, (found, *others), known.version))
    return tmp_path


def test_types_are_layers_against_roles(folder: Path) -> None:
    maps = [row.types for row in read_result(folder).rows if row.types is not None]
    assert len(maps) == 1
    found = maps[0]
    assert found.layers == tuple(range(6))
    roles = {name: [c and (c.kind, c.digit) for c in cells] for name, cells in found.roles}
    assert roles == {
        "attn_v": [("iq4_nl", "4"), ("q8_0", "8")] * 3,
        "ffn_down": [("q5_1", "5")] * 5 + [None],
    }
    assert [(name, cell.kind) for name, cell in found.others] == [
        ("token_embd", "q6_k"),
        ("output", "f16"),
    ]
    counts = {cell.kind: count for cell, count in found.kinds}
    assert counts == {"iq4_nl": 3, "q5_1": 5, "q6_k": 1, "q8_0": 3, "f16": 1}
    depths = [cell.depth for cell, _ in found.kinds]
    assert depths == sorted(depths)
    assert "predicted to lose 0.012 nats" in found.told
    assert "the next megabyte would bring it to 0.01" in found.told


async def test_the_map_is_below_the_chart_or_in_a_panel(app: IngotApp, folder: Path) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen._turn_to("result")
        screen.query_one(QuantizeResult).show(read_result(folder))
        table, below = screen.query_one(FileTable), screen.query_one("#types", TypeMapView)
        table.focus()
        await pilot.press("home")
        while table.record is not None and table.record.types is None:
            assert not below.display
            assert "m" not in screen.active_bindings
            await pilot.press("down")

        def drawn(view: TypeMapView) -> bool:
            cells = str(view.query_one(".types-cells", Static).render()).splitlines()
            rows = {line.split()[0]: "".join(line.split()[1:]) for line in cells}
            kinds = str(view.query_one(".types-kinds", Static).render())
            wanted = {"layer": "05", "attn_v": "484848", "ffn_down": "55555"}
            return rows == wanted and "token_embd q6_k" in kinds

        await wait_until(lambda: below.region and drawn(below))
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: not below.region)
        await pilot.press("m")
        await wait_until(lambda: isinstance(app.screen, TypesScreen))
        await wait_until(lambda: drawn(app.screen.query_one(TypeMapView)))
        await pilot.press("escape")
        await wait_until(lambda: app.screen is screen)
