"""The quantize screen, with real runs from a half-precision GGUF file."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, ProgressBar, Static, TabbedContent
from textual.widgets._footer import FooterKey

from app.builds.forecast import Forecast
from app.builds.progress import QuantizeRun, Stage, State
from app.builds.prospects import prospects
from app.builds.results import read_result
from app.tui.app import IngotApp
from app.tui.screens.compare import CompareScreen
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.quantize import QuantizeScreen
from app.tui.widgets.form import Check
from app.tui.widgets.front import FrontChart
from app.tui.widgets.quantize_files import FileTable, QuantizeResult
from app.tui.widgets.quantize_form import QuantizeForm
from app.tui.widgets.quantize_run import QuantizeProgress
from app.tui.widgets.recipe_cards import RecipeCard, RecipeCards
from quantize.build.workspace import Workspace
from quantize.manifest import load_manifest
from quantize.source import SourceModel
from tests.app import stopping
from tests.app.tui.conftest import SIZES
from tests.support import wait_until


@pytest.fixture
def app(services: Any) -> IngotApp:
    return IngotApp(services)


def screen_of(app: IngotApp) -> QuantizeScreen:
    found = next(s for s in app.screen_stack if isinstance(s, QuantizeScreen))
    assert isinstance(found, QuantizeScreen)
    return found


async def open_screen(pilot: Pilot[Any]) -> QuantizeScreen:
    await pilot.press("f5")
    await wait_until(lambda: isinstance(pilot.app.screen, QuantizeScreen))
    await pilot.pause()
    return screen_of(pilot.app)  # type: ignore[arg-type]


def text_of(screen: QuantizeScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).render())


def fill(screen: QuantizeScreen, model: Path, out: Path, *recipes: str) -> None:
    screen.query_one("#model", Input).value = str(model)
    screen.query_one("#out", Input).value = str(out)
    screen.query_one(RecipeCards).choose(recipes)
    if screen.query_one("#measure", Check).value:
        screen.query_one("#measure", Check).toggle()


def state_of(screen: QuantizeScreen) -> State | None:
    process = screen._process
    return process.run.state if process is not None else None


def page(screen: QuantizeScreen) -> str:
    return screen.query_one(TabbedContent).active


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


def card_of(screen: QuantizeScreen, recipe: str) -> RecipeCard:
    return screen.query_one(f"#card-{recipe}", RecipeCard)


def sum_of(form: QuantizeForm) -> str:
    return str(form.query_one("#sum", Static).render())


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
        assert (card.has_class("-chosen"), card.marked_title) == (False, "q8_0")
        await pilot.press("enter")
        assert "q8_0" in cards.chosen
        assert (card.has_class("-chosen"), card.marked_title) == (True, "✓ q8_0")
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


def offered(screen: QuantizeScreen) -> list[str]:
    """What the line at the bottom has keys for."""
    return [key.description for key in screen.query(FooterKey)]


@contextmanager
def held(folder: Path, built: Path) -> Iterator[None]:
    """Runs that are begun meanwhile quantize nothing once ``built`` is there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stopping.before_quantizing(folder, built).items():
            patch.setenv(name, value)
        yield


async def stopped(screen: QuantizeScreen) -> psutil.Process:
    """The quantizer of its run, once it waits."""
    assert screen._process is not None
    pid = screen._process.pid
    await wait_until(lambda: stopping.waiting(pid))
    (quantizer,) = stopping.waiting(pid)
    return quantizer


def stages(screen: QuantizeScreen) -> str:
    return text_of(screen, "#stages")


async def test_a_build_is_stopped_goes_on_and_its_file_can_be_asked(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        fill(screen, float_gguf, tmp_path / "o", "q4_0")
        with held(tmp_path / "held", float_gguf):
            await pilot.press("ctrl+g")
            await wait_until(lambda: "▶ quantizing to q4_0" in stages(screen))
            await stopped(screen)
            first = screen._process
            assert first is not None
            await pilot.press("ctrl+g")  # a second one at the same time
            await wait_until(lambda: any("is in progress" in n.message for n in app._notifications))
            assert screen._process is first
            await pilot.press("escape")
            await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("n")
            await wait_until(lambda: app.screen is screen)
            assert not first.stopping
            await pilot.press("escape")
            await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await wait_until(lambda: state_of(screen) is State.STOPPED)
            assert "stopped; starting it again resumes" in text_of(screen, "#files")

            await pilot.press("ctrl+g")
            await wait_until(lambda: screen.running and "Stop" in offered(screen))
            await pilot.press("ctrl+c")
            await wait_until(lambda: state_of(screen) is State.STOPPED)
            assert screen._process is not first
            await wait_until(lambda: "Stop" not in offered(screen))
            assert app.is_running
            assert page(screen) == "run"

        await pilot.press("ctrl+g")
        await wait_until(lambda: page(screen) == "result", 300)
        assert state_of(screen) is State.DONE
        told = text_of(screen, "#files")
        assert "1 of 1 file ready" in told
        assert re.search(r"✓ q4_0  done: [\d.]+ MB", told)
        assert "✓ quantizing to q4_0" in stages(screen)
        table = screen.query_one(FileTable)
        await wait_until(lambda: screen.focused is table)
        assert len(table.rows) == 1

        await pilot.press("o")
        report = str(tmp_path / "o" / "report.html")
        await wait_until(lambda: any(report in n.message for n in app._notifications))
        assert app.clipboard == report

        await pilot.press("enter")
        await wait_until(lambda: app.current_mode == "chat")
        await wait_until(lambda: app.services.host.engine is not None)
        assert "q4_0" in app.services.host.label


async def test_the_chart_grows_while_files_are_measured(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        fill(screen, float_gguf, tmp_path / "o", "q8_0", "q4_0")
        screen.query_one("#measure", Check).toggle()
        front = screen.query_one("#run-front", FrontChart)
        assert not front.marks
        with held(tmp_path / "held", tmp_path / "o" / "manifest.json"):
            await pilot.press("ctrl+g")
            await wait_until(lambda: front.marks, 300)
            assert screen.running
            assert page(screen) == "run"
            (first,) = front.marks
            assert first.label in ("q8_0", "q4_0")
            quantizer = await stopped(screen)
        quantizer.resume()
        await wait_until(lambda: page(screen) == "result", 300)
        files = screen.query_one("#chart", FrontChart)
        await wait_until(lambda: len(files.marks) == 2)
        told = read_result(tmp_path / "o")
        best = next(row.recipe for row in told.rows if row.best)
        assert [m.label.strip("[]") for m in files.marks if m.marker == "★"] == [best]
        assert told.chart is not None
        drawn = {m.label.strip("[]"): (m.x, m.y) for m in files.marks}
        assert drawn == {p.label: (p.megabytes, p.divergence) for p in told.chart.points}
        # What was measured is now on the cards.
        await wait_until(lambda: "same top" in card_of(screen, "q8_0").prospect.quality_text)


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
        await pilot.press("home", "space", "down", "down", "space", "v")
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


async def test_leaving_while_it_builds_asks_and_ends_the_run(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        fill(screen, float_gguf, tmp_path / "o", "q8_0", "q4_0")
        assert screen.leaving() is None
        with held(tmp_path / "held", float_gguf):
            await pilot.press("ctrl+g")
            await wait_until(lambda: "▶ quantizing to" in stages(screen))
            await stopped(screen)
        await pilot.press("f2", "ctrl+q")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("n")
        await wait_until(lambda: not isinstance(app.screen, ConfirmScreen))
        assert app.is_running
        assert screen._process is not None
        pid = screen._process.pid
        await pilot.press("ctrl+q")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await wait_until(lambda: not app.is_running)
    await wait_until(lambda: not psutil.pid_exists(pid))


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


async def test_a_run_that_ends_early_says_what_to_do(app: IngotApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        screen._turn_to("run")
        run = run_in_the_middle()
        progress = screen.query_one(QuantizeProgress)
        progress.show(run, 1270.0)
        panel = screen.query_one("#quantize-ended")
        assert not panel.display
        assert screen.query_one("#step-bar", ProgressBar).percentage == pytest.approx(131 / 291)
        run.ended(1, "out of memory")
        progress.show(run, 1280.0)
        assert panel.display
        assert (panel.border_title, panel.has_class("-failed")) == ("The build failed", True)
        assert "out of memory\nWhat is finished is kept" in text_of(screen, "#ended-text")
        assert not screen.query_one("#step-bar").display


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


async def test_pages_turn_by_keys(app: IngotApp, pebble: Path, pebble_built: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        seen = []
        for _ in range(3):
            await pilot.press("f10")
            await pilot.pause()
            seen.append(page(screen))
        for _ in range(3):  # wherever the cursor is: logs and tables have these keys, too
            await pilot.press("ctrl+pageup")
            await pilot.pause()
            seen.append(page(screen))
        assert seen == ["run", "result", "form", "result", "run", "form"]
        screen.query_one("#out", Input).value = str(pebble_built)
        screen.query_one("#model", Input).value = str(pebble)
        await wait_until(lambda: len(screen.query_one(FileTable).rows) >= 4)


# Pictures, with figures that stand still

FORECAST = Forecast(
    SourceModel(
        *(Path("/models/river-7b"), "LlamaForCausalLM", (), 6_738_000_000),
        name="river-7b",
        beside=Path("/models"),
        bytes=13_476_000_000,
    ),
    Path("/models/river-7b-built"),
    {"half-precision GGUF": 14_150_000_000, "q4_k_m": 4_330_000_000, "q8_0": 7_520_000_000},
    412_000_000_000,
    {"running the float model": 15_500_000_000},
    61_000_000_000,
)


def run_in_the_middle() -> QuantizeRun:
    run = QuantizeRun(("q4_k_m", "q8_0", "onnx-int4", "onnx-int8"), begin=1000.0, end=1300.0)
    done = State.DONE
    run.stages = [
        Stage(1, "reading the model", 1000.0, state=done, seconds=8.1),
        Stage(2, "converting to GGUF, half precision", 1008.0, state=done, seconds=71.0),
        Stage(3, "quantizing to q4_k_m", 1079.0, recipe="q4_k_m", state=done, seconds=94.3),
        Stage(
            *(4, "comparing q4_k_m with the float model", 1173.0, 0, "q4_k_m", done, 62.0),
        ),
        Stage(
            *(5, "quantizing to q8_0", 1235.0, 0, "q8_0", State.RUNNING, None),
            *(131.0, 291.0, "tensors", 3.9, 41.0),
        ),
    ]
    run.files, run.sizes = {"q4_k_m": Path("/o/q4_k_m.gguf")}, {"q4_k_m": 4_370_000_000}
    run.notes = ["1 of 291 tensors has rows that are not a multiple of 256 weights"]
    return run


def picture_app(app: IngotApp, name: str, folder: Path) -> Any:
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
        await pilot.pause()

    return show


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The figures of Pebble's files as they were measured, in a folder of a fixed name."""
    folder = Path("river")
    monkeypatch.chdir(tmp_path)
    folder.mkdir()
    (folder / "manifest.json").write_text(MANIFEST.read_text())
    return folder


MANIFEST = Path(__file__).with_name("quantized.json")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["form", "run", "result"])
def test_picture(
    app: IngotApp, snap: Any, measured: Path, name: str, size: tuple[int, int]
) -> None:
    assert snap(app, terminal_size=size, run_before=picture_app(app, name, measured))


async def test_without_colour_ticks_and_the_page_can_be_told(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = IngotApp(services)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        await pilot.pause()
        lines = ["".join(s.text for s in strip) for strip in screen._compositor.render_strips()]
        assert sum("[x]" in line for line in lines) == 1  # to measure
        assert sum(line.count("✓ ") for line in lines) == 4  # recipes
        assert any("[ ] Build again" in line for line in lines)
        reverse = [
            segment.text
            for strip in screen._compositor.render_strips()
            for segment in strip
            if segment.style and segment.style.reverse
        ]
        assert "1 Choose" in "".join(reverse)
    await asyncio.sleep(0)
