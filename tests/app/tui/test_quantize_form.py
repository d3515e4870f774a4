"""The quantize screen's form and recipe cards."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from app.tui.app import IngotApp
from app.tui.widgets.form import Check
from app.tui.widgets.quantize_form import QuantizeForm, RecipeCards, RecipeChart
from quantize.build.workspace import Workspace
from quantize.manifest import load_manifest
from quantize.recipes import RECIPES
from tests.app.tui.quantize_app import (
    card_of,
    fill,
    open_screen,
    page,
    sum_of,
    text_of,
)
from tests.app.tui.test_quantize_screen import MANIFEST as MEASURED
from tests.support import wait_until


async def test_the_form_follows_what_is_typed(app: IngotApp, pebble: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        line = screen.query_one("#model", Input)
        assert screen.focused is line
        await pilot.press(*str(pebble)[:-2])
        await wait_until(lambda: line._suggestion)
        assert line._suggestion == f"{pebble}/"  # the folders come by name
        await pilot.press("tab")
        assert line.value == f"{pebble}/"
        await wait_until(lambda: "4.9 M weights" in text_of(screen, "#forecast"))
        assert "pebble-built" in text_of(screen, "#forecast")
        cards = screen.query_one(RecipeCards)
        await pilot.press("tab", "tab")
        assert screen.focused is cards
        await wait_until(lambda: card_of(screen, "q8_0").prospect.exact)

        screen.query_one("#out", Input).value = str(pebble.parent / "elsewhere")
        await wait_until(lambda: "elsewhere" in text_of(screen, "#forecast"))
        form = screen.query_one(QuantizeForm)
        await wait_until(lambda: "of memory" in sum_of(form))
        needed = sum_of(form)
        screen.query_one("#measure").focus()
        await pilot.press("space")
        await wait_until(lambda: "of memory" in sum_of(form) and sum_of(form) != needed)
        screen.query_one("#model", Input).value = "/no/such"
        await wait_until(lambda: "there is no folder /no/such" in form.errors.get("model", ""))
        await wait_until(lambda: card_of(screen, "q8_0").prospect.bytes is None)
        screen.query_one("#model", Input).value = str(pebble)
        await wait_until(lambda: not form.errors)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_cards_are_chosen_by_keys_and_mouse(app: IngotApp, size: tuple[int, int]) -> None:
    async with app.run_test(size=size) as pilot:
        screen = await open_screen(pilot)
        cards = screen.query_one(RecipeCards)
        cards.focus()
        assert cards.chosen == ("q4_k_m", "q8_0", "onnx-int4", "onnx-int8")
        await pilot.press("right", "space")
        assert cards.chosen == ("q4_k_m", "onnx-int4", "onnx-int8")
        card = card_of(screen, "q8_0")
        assert (card.has_class("-chosen"), card.border_title) == (False, "q8_0")
        await pilot.press("enter")
        assert "q8_0" in cards.chosen
        assert (card.has_class("-chosen"), card.border_title) == (True, "✓ q8_0")
        form = screen.query_one(QuantizeForm)
        assert str(form.query_one("#advice", Static).render()).startswith("q8_0  8-bit")
        assert sum_of(form) == "4 recipes"

        await pilot.press("down")
        below = cards.recipe.name
        assert below in ("q5_k_m", "q4_0")  # of two columns, and of three
        await pilot.press("up", "left", "left")
        assert cards.recipe.name == "q4_k_m"
        await pilot.press("end")
        assert cards.recipe.name == "onnx-int4-rtn"

        await pilot.click(card_of(screen, "onnx-w8a8"))
        assert cards.recipe.name == "onnx-w8a8"
        assert "onnx-w8a8" in cards.chosen
        await pilot.click(card_of(screen, "onnx-w8a8"))
        assert "onnx-w8a8" not in cards.chosen

        more = screen.query_one("#more-recipes")
        more.scroll_visible(animate=False)
        await pilot.pause()
        await pilot.click("#more-recipes CollapsibleTitle")
        await wait_until(lambda: screen.query("#card-iq1_s"))
        cards.focus()
        await pilot.press("end", "space")
        assert cards.recipe.name in cards.chosen
        assert cards.recipe.name == "onnx-fp32"


async def test_cards_say_what_the_files_then_have(
    app: IngotApp, pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen.query_one("#out", Input).value = str(tmp_path / "new")
        screen.query_one("#model", Input).value = str(pebble)
        await wait_until(lambda: card_of(screen, "q8_0").prospect.exact)
        for entry in load_manifest(pebble_built).files:
            told = card_of(screen, entry.recipe).prospect
            assert told.bytes == pytest.approx(entry.bytes, rel=0.02)
            assert told.bits == pytest.approx(entry.bits_per_weight, rel=0.01)
            assert (told.there, card_of(screen, entry.recipe).border_subtitle) == (False, "fits")
        assert "on Llama-3-8B" in card_of(screen, "q4_k_m").prospect.quality_text
        screen.query_one("#out", Input).value = str(pebble_built)
        await wait_until(lambda: card_of(screen, "q8_0").prospect.there)
        assert card_of(screen, "q8_0").border_subtitle == "built · fits"


async def test_what_would_be_refused_is_not_started(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        await pilot.press("ctrl+g")
        form = screen.query_one(QuantizeForm)
        await wait_until(lambda: "name a model" in form.errors.get("model", ""))
        fill(screen, float_gguf, tmp_path / "o", "iq1_s")
        await wait_until(lambda: "iq1_s cannot be made" in form.errors.get("imatrix", ""))
        assert list(form.errors) == ["imatrix"]
        screen.query_one("#out").focus()
        await pilot.press("ctrl+g")
        await wait_until(lambda: screen.focused is screen.query_one("#imatrix"))
        screen.query_one(RecipeCards).choose(("onnx-int4",))
        await wait_until(lambda: "cannot be made from a GGUF file" in sum_of(form))
        await pilot.press("ctrl+g")
        await wait_until(lambda: not screen._busy)
        assert screen._process is None
        assert page(screen) == "form"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
async def test_a_run_that_others_have_begun_is_told_until_it_ends(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        with Workspace(tmp_path / "o"):
            fill(screen, float_gguf, tmp_path / "o", "q8_0")
            form = screen.query_one(QuantizeForm)
            await wait_until(lambda: "builds into" in form.errors.get("out", ""))
            await pilot.press("ctrl+g")
            await wait_until(lambda: screen.focused is screen.query_one("#out"))
            assert screen._process is None
        await wait_until(lambda: not form.errors)


async def test_a_run_that_fails_says_so(app: IngotApp, float_gguf: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut-f16.gguf"
    cut.write_bytes(float_gguf.read_bytes()[:-1_000_000])
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        fill(screen, cut, tmp_path / "o", "q8_0")
        await pilot.press("ctrl+g")
        form = screen.query_one(QuantizeForm)
        await wait_until(lambda: "is truncated" in form.errors.get("model", ""))  # by its header
        assert screen._process is None


async def test_targets_stand_beside_the_recipes(
    app: IngotApp, pebble: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        screen.query_one("#model", Input).value = str(pebble)
        screen.query_one("#out", Input).value = str(tmp_path / "o")
        screen.query_one(RecipeCards).choose(("q8_0",))
        line, form = screen.query_one("#targets", Input), screen.query_one(QuantizeForm)
        line.value = "kl0.02, fast"
        await wait_until(lambda: "fast is no target" in form.errors.get("targets", ""))
        line.value = "kl0.02, 2.5MB kl0.02"
        await wait_until(lambda: not form.errors and "of memory" in sum_of(form))
        assert sum_of(form).startswith("1 recipe · 2 targets")
        command = form.settings.arguments()
        assert command[command.index("--recipe") + 1] == "q8_0,kl0.02,2.5mb"
        screen.query_one("#measure", Check).toggle()
        await wait_until(lambda: "tick “Measure" in form.errors.get("targets", ""))
        line.value = "2.5MB"
        await wait_until(lambda: not form.errors)
        screen.query_one(RecipeCards).choose(())
        await wait_until(lambda: sum_of(form).startswith("0 recipes · 1 target"))
        await wait_until(lambda: "of memory" in sum_of(form))


async def test_a_high_screen_has_the_recipes_as_points(
    app: IngotApp, pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    """What was measured in the folder counts more than what is published of another model."""
    built = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    said = json.loads((built / "manifest.json").read_text())
    for file, measured in zip(
        said["files"], json.loads(MEASURED.read_text())["files"], strict=True
    ):
        file["fidelity"] = measured["fidelity"]
    (built / "manifest.json").write_text(json.dumps(said))
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await open_screen(pilot)
        chart = screen.query_one(RecipeChart)

        def marks() -> dict[str, tuple[float, float, str]]:
            return {one.label.strip("[]"): (one.x, one.y, one.marker) for one in chart.marks}

        known = RECIPES["q4_k_m"]
        assert marks()["q4_k_m"] == (known.bits_per_weight, known.published_kl, "○")
        assert "onnx-int4" not in marks()

        screen.query_one("#out", Input).value = str(built)
        screen.query_one("#model", Input).value = str(pebble)
        await wait_until(lambda: "onnx-int4" in marks())
        for entry in load_manifest(built).files:
            assert entry.fidelity is not None
            assert marks()[entry.recipe] == (entry.bytes / 1e6, entry.fidelity.kl_mean, "●")
        assert {one[2] for one in marks().values()} == {"●", "○"}
        assert chart.region.bottom <= screen.query_one("#quantize-foot").region.y
        colors = {one.label: one.color for one in chart.marks}
        assert colors["q8_0"] == "$text-primary" != colors["q6_k"]
        await pilot.resize_terminal(120, 40)
        await wait_until(lambda: not chart.display)
