"""The quantize screen's form and recipe cards."""

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
from tests.app.tui.quantize_app import MANIFEST, card_of, open_screen, page, sum_of, text_of
from tests.support import wait_until


async def test_the_form_follows_what_is_typed(
    app: IngotApp, pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    # Away from the checkout's, beside which `make demo` has put its files.
    pebble = Path(shutil.copytree(pebble, tmp_path / "models" / "pebble"))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        form, cards = screen.query_one(QuantizeForm), screen.query_one(RecipeCards)
        model, out = screen.query_one("#model", Input), screen.query_one("#out", Input)
        assert screen.focused is model
        model.value = str(pebble)[:-4]
        await pilot.press("end", *str(pebble)[-4:-2])
        await wait_until(lambda: model._suggestion == f"{pebble}/")  # the folders come by name
        await pilot.press("tab")
        assert model.value == f"{pebble}/"
        await wait_until(lambda: "4.9 M weights" in text_of(screen, "#forecast"))
        assert "pebble-built" in text_of(screen, "#forecast")
        await pilot.press("tab", "tab")
        assert screen.focused is cards

        # Cards say what the files then have.
        await wait_until(lambda: card_of(screen, "q8_0").border_subtitle == "fits")
        assert card_of(screen, "q8_0").prospect.exact
        out.value = str(pebble_built)
        await wait_until(lambda: card_of(screen, "q8_0").border_subtitle == "built · fits")
        out.value = str(tmp_path / "o")

        # Targets stand beside the recipes; the sum follows, and what is wrong is where it is.
        cards.choose(("q8_0",))
        targets = screen.query_one("#targets", Input)
        targets.value = "kl0.02, fast"
        await wait_until(lambda: "fast is no target" in form.errors.get("targets", ""))
        targets.value = "kl0.02, 2.5MB kl0.02"
        await wait_until(lambda: not form.errors and "of memory" in sum_of(form))
        assert sum_of(form).startswith("1 recipe · 2 targets")
        command = form.settings.arguments()
        assert command[command.index("--recipe") + 1] == "q8_0,kl0.02,2.5mb"
        measured = sum_of(form)
        screen.query_one("#measure", Check).focus()
        await pilot.press("space")
        await wait_until(lambda: "tick “Measure" in form.errors.get("targets", ""))
        targets.value = ""
        await wait_until(lambda: "of memory" in sum_of(form) and sum_of(form) != measured)
        model.value = "/no/such"
        await wait_until(lambda: "there is no folder /no/such" in form.errors.get("model", ""))
        await wait_until(lambda: card_of(screen, "q8_0").prospect.bytes is None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
async def test_what_would_be_refused_is_not_started(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut-f16.gguf"
    cut.write_bytes(float_gguf.read_bytes()[:-1_000_000])
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        form, cards = screen.query_one(QuantizeForm), screen.query_one(RecipeCards)

        async def refused(text: str, name: str) -> None:
            """By the key that starts it, which goes to the field."""
            screen.query_one("#lora").focus()
            await pilot.press("ctrl+g")
            await wait_until(lambda: text in form.errors.get(name, ""))
            await wait_until(lambda: screen.focused is screen.query_one(f"#{name}"))

        form.fill(model=str(cut), out=str(tmp_path / "o"))
        await refused("is truncated", "model")  # by its header
        form.fill(model=str(float_gguf))
        with Workspace(tmp_path / "o"):
            await refused("builds into", "out")
        await wait_until(lambda: not form.errors)  # that has ended
        cards.choose(("onnx-int4",))
        await wait_until(lambda: "cannot be made from a GGUF file" in sum_of(form))
        await pilot.press("ctrl+g")
        await wait_until(lambda: not screen._busy)
        assert screen._process is None
        assert page(screen) == "form"


async def test_cards_are_chosen_by_keys_and_mouse(app: IngotApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        form, cards = screen.query_one(QuantizeForm), screen.query_one(RecipeCards)
        cards.focus()
        assert cards.chosen == ("q4_k_m", "q8_0", "onnx-int4", "onnx-int8")
        await pilot.press("right", "space")
        card = card_of(screen, "q8_0")
        assert (card.has_class("-chosen"), card.border_title) == (False, "q8_0")
        assert sum_of(form) == "3 recipes"
        await pilot.press("enter")
        assert (card.has_class("-chosen"), card.border_title) == (True, "✓ q8_0")
        assert str(form.query_one("#advice", Static).render()).startswith("q8_0  8-bit")

        await pilot.press("down")
        assert cards.recipe.name == "q5_k_m"
        await pilot.press("up", "left", "left")
        assert cards.recipe.name == "q4_k_m"
        await pilot.press("end")
        assert cards.recipe.name == "onnx-int4-rtn"
        for chosen in (True, False):
            await pilot.click(card_of(screen, "onnx-w8a8"))
            assert cards.recipe.name == "onnx-w8a8"
            assert ("onnx-w8a8" in cards.chosen) is chosen

        screen.query_one("#more-recipes").scroll_visible(animate=False)
        await pilot.pause()
        await pilot.click("#more-recipes CollapsibleTitle")
        await wait_until(lambda: screen.query("#card-iq1_s"))
        cards.focus()
        await pilot.press("end", "space")
        assert cards.recipe.name == "onnx-fp32"
        assert "onnx-fp32" in cards.chosen


async def test_a_high_screen_has_the_recipes_as_points(
    app: IngotApp, pebble: Path, pebble_built: Path, tmp_path: Path
) -> None:
    """What was measured in the folder counts more than what is published of another model."""
    built = Path(shutil.copytree(pebble_built, tmp_path / "built"))
    said, measured = (json.loads(path.read_text()) for path in (built / "manifest.json", MANIFEST))
    for file, other in zip(said["files"], measured["files"], strict=True):
        file["fidelity"] = other["fidelity"]
    (built / "manifest.json").write_text(json.dumps(said))
    async with app.run_test(size=(200, 60)) as pilot:
        screen = await open_screen(pilot)
        chart = screen.query_one(RecipeChart)

        def marks() -> dict[str, tuple[float, float, str]]:
            return {one.label.strip("[]"): (one.x, one.y, one.marker) for one in chart.marks}

        known = RECIPES["q4_k_m"]
        assert marks()["q4_k_m"] == (known.bits_per_weight, known.published_kl, "○")
        assert "onnx-int4" not in marks()

        screen.query_one(QuantizeForm).fill(out=str(built), model=str(pebble))
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
