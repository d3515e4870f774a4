"""The quantize screen of an app: opened, filled in, read."""

from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input, Static, TabbedContent

from app.builds.run import QuantizeRun, RunStage, RunState
from app.tui.app import IngotApp
from app.tui.screens.quantize import QuantizeScreen
from app.tui.widgets.form import Check
from app.tui.widgets.quantize_form import QuantizeForm, RecipeCard, RecipeCards
from tests.support import wait_until

MANIFEST = Path(__file__).with_name("quantized.json")  # of Pebble's files as they were measured


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


def card_of(screen: QuantizeScreen, recipe: str) -> RecipeCard:
    return screen.query_one(f"#card-{recipe}", RecipeCard)


def sum_of(form: QuantizeForm) -> str:
    return str(form.query_one("#sum", Static).render())


def state_of(screen: QuantizeScreen) -> RunState | None:
    process = screen._process
    return process.run.state if process is not None else None


def page(screen: QuantizeScreen) -> str:
    return screen.query_one(TabbedContent).active


def run_in_the_middle() -> QuantizeRun:
    run = QuantizeRun(("q4_k_m", "q8_0", "onnx-int4", "onnx-int8"), begin=1000.0, end=1300.0)
    done = RunState.DONE
    run.stages = [
        RunStage(1, "reading the model", 1000.0, state=done, seconds=8.1),
        RunStage(2, "converting to GGUF, half precision", 1008.0, state=done, seconds=71.0),
        RunStage(3, "quantizing to q4_k_m", 1079.0, recipe="q4_k_m", state=done, seconds=94.3),
        RunStage(
            *(4, "comparing q4_k_m with the float model", 1173.0, 0, "q4_k_m", done, 62.0),
        ),
        RunStage(
            *(5, "quantizing to q8_0", 1235.0, 0, "q8_0", RunState.RUNNING, None),
            *(131.0, 291.0, "tensors", 3.9, 41.0),
        ),
    ]
    run.files, run.sizes = {"q4_k_m": Path("/o/q4_k_m.gguf")}, {"q4_k_m": 4_370_000_000}
    run.notes = ["1 of 291 tensors has rows that are not a multiple of 256 weights"]
    return run
