"""The quantize screen's pages, its files, and pictures of it."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from app.builds.prospects import BuildForecast, prospects
from app.builds.results import read_result
from app.tui.app import IngotApp
from app.tui.screens.compare import CompareScreen
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.quantize import QuantizeProgress
from app.tui.widgets.quantize_files import (
    FileTable,
    FrontChart,
    QuantizeResult,
    TypeMapView,
    TypesScreen,
)
from app.tui.widgets.quantize_form import QuantizeForm, RecipeCards
from quantize.manifest import Allocation, Manifest, load_manifest, write_manifest
from quantize.source import SourceModel
from tests.app.tui.bursts import burst
from tests.app.tui.conftest import SIZES
from tests.app.tui.quantize_app import MANIFEST, card_of, open_screen, page, run_in_the_middle
from tests.support import wait_until


async def test_a_file_is_compared_found_and_deleted(
    app: IngotApp, pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen.query_one("#out", Input).value = str(folder)
        screen.query_one("#model", Input).value = str(pebble)
        table = screen.query_one(FileTable)
        await wait_until(lambda: len(table.rows) == 4)
        await pilot.press("f10", "f10")
        await wait_until(lambda: screen.focused is table)

        await pilot.press("c")
        assert app.clipboard == str(folder / "pebble-q4_k_m.gguf")
        await pilot.press("down")
        await pilot.click("#file-path")
        assert app.clipboard == str(folder / "onnx-int4")
        table.focus()
        await pilot.press("home", "space")
        assert [row.recipe for row in table.compared()] != ["q4_k_m", "q4_k_m"]
        await pilot.press("down", "down", "space", "v")
        await wait_until(lambda: isinstance(app.screen, CompareScreen))
        compared = app.screen
        assert isinstance(compared, CompareScreen)
        await wait_until(lambda: len(compared.entries) == 2)
        assert [entry.recipe for entry in compared.entries] == ["q4_k_m", "q8_0"]

        await pilot.press("f5")
        await wait_until(lambda: app.screen is screen)
        await pilot.press("delete")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("n")
        await wait_until(lambda: app.screen is screen)
        assert len(table.rows) == 4
        await pilot.click("#file-remove")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await wait_until(lambda: len(table.rows) == 3)
        assert not (folder / "pebble-q8_0.gguf").exists()
        await wait_until(lambda: not card_of(screen, "q8_0").prospect.there)
        table.focus()
        await pilot.press("home")
        await pilot.click("#file-chat")
        await wait_until(lambda: app.current_mode == "chat")


async def test_pages_turn_by_keys(app: IngotApp, pebble: Path, pebble_built: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        seen = []
        for key in (*["f10"] * 3, *["ctrl+pageup"] * 3):  # logs and tables have these, too
            await pilot.press(key)
            await pilot.pause()
            seen.append(page(screen))
        assert seen == ["run", "result", "form", "result", "run", "form"]
        await burst(pilot, *["f10"] * 3, *"pebble")  # the letters are behind the keys
        assert page(screen) == "form"
        assert screen.query_one("#model", Input).value == "pebble"
        screen.query_one("#out", Input).value = str(pebble_built)
        screen.query_one("#model", Input).value = str(pebble)
        await wait_until(lambda: len(screen.query_one(FileTable).rows) >= 4)


FORECAST = BuildForecast(
    SourceModel(
        *(Path("/models/river-7b"), "LlamaForCausalLM", (), 6_738_000_000),
        name="river-7b",
        beside=Path("/models"),
        bytes=13_476_000_000,
    ),
    Path("/models/river-7b-built"),
    *(26_000_000_000, 412_000_000_000, 15_500_000_000),
)


@pytest.mark.parametrize("name", ["form", "run", "result"])
def test_picture(
    app: IngotApp, snap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = Path("river")  # it is told
    monkeypatch.chdir(tmp_path)
    folder.mkdir()
    (folder / "manifest.json").write_text(MANIFEST.read_text())

    async def show(pilot: Pilot[Any]) -> None:
        screen = await open_screen(pilot)
        screen._turn_to(name)
        await pilot.pause()
        if name == "form":
            form = screen.query_one(QuantizeForm)
            form.query_one("#model", Input).placeholder = "river-7b"
            form.query_one(RecipeCards).show_prospects(prospects(FORECAST.source, FORECAST.out))
            form.query_one("#forecast", Static).update("\n".join(FORECAST.lines()))
        elif name == "run":
            screen.query_one(QuantizeProgress).show(run_in_the_middle(), 1270.0)
            screen.query_one("#run-front", FrontChart).show_result(read_result(folder))
        else:
            screen.query_one(QuantizeResult).show(read_result(folder))

    assert snap(app, terminal_size=SIZES[1], run_before=show)


TYPES = {
    "token_embd.weight": "q6_k",
    "output.weight": "f16",
    **{f"blk.{n}.attn_v.weight": "q8_0" if n % 2 else "iq4_nl" for n in range(6)},
    **{f"blk.{n}.ffn_down.weight": "q5_1" for n in range(5)},  # the last layer has none
}


def built_for_a_target(tmp_path: Path) -> Path:
    """Measured files; the first of llama.cpp's is said to have been built for a target."""
    (tmp_path / "manifest.json").write_bytes(MANIFEST.read_bytes())
    known = load_manifest(tmp_path)
    built = next(entry for entry in known.files if entry.format == "gguf")
    found = dataclasses.replace(built, allocation=Allocation(TYPES, 0.0123, 2, 0.013, 0.0101))
    others = [entry for entry in known.files if entry is not built]
    write_manifest(tmp_path, Manifest(known.model, (found, *others), known.version))
    return tmp_path


TOLD = """
predicted to lose 0.012 nats, measured 0.021 (error 0.0007), the next megabyte would bring it to\
 0.01, 2 files tried
layer     0              5
attn_v    4  8  4  8  4  8
ffn_down  5  5  5  5  5
4 iq4_nl 3   5 q5_1 5   6 q6_k 1   F f16 1   8 q8_0 3   token_embd q6_k   output f16"""


async def test_types_are_below_the_chart_or_in_a_panel(app: IngotApp, tmp_path: Path) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen._turn_to("result")
        screen.query_one(QuantizeResult).show(read_result(built_for_a_target(tmp_path)))
        table, below = screen.query_one(FileTable), screen.query_one("#types", TypeMapView)
        table.focus()
        await pilot.press("home")
        while table.record is not None and table.record.entry.allocation is None:
            assert not below.display
            assert "m" not in screen.active_bindings
            await pilot.press("down")

        def told(view: TypeMapView) -> str:
            """Of the file, its layers against the roles, and the kinds."""
            texts = view.query(Static).results(Static)
            lines = [line for one in texts for line in str(one.render()).splitlines()]
            return "".join(f"\n{line.rstrip()}" for line in lines)

        await wait_until(lambda: below.region and told(below) == TOLD)
        await pilot.resize_terminal(80, 24)
        await wait_until(lambda: not below.region)
        await pilot.press("m")
        await wait_until(lambda: isinstance(app.screen, TypesScreen))
        await wait_until(lambda: told(app.screen.query_one(TypeMapView)) == TOLD)
        await pilot.press("escape")
        await wait_until(lambda: app.screen is screen)
