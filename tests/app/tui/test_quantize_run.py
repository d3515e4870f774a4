"""Real runs of the quantize screen, from a half-precision GGUF file."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.widgets import ProgressBar
from textual.widgets._footer import FooterKey

from app.builds import run
from app.builds.results import read_result
from app.builds.run import RunState
from app.tui.app import IngotApp
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.quantize import QuantizeProgress, QuantizeScreen
from app.tui.widgets.form import Check
from app.tui.widgets.quantize_files import FileTable, FrontChart
from tests.app import stopping
from tests.app.tui.quantize_app import (
    card_of,
    fill,
    open_screen,
    page,
    run_in_the_middle,
    state_of,
    text_of,
)
from tests.support import wait_until


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


@contextmanager
def short_speeds() -> Iterator[None]:
    """Runs that are begun meanwhile measure speeds for a moment only (``tests.quick``)."""
    begin = run.Child

    def quickly(*words: Any, **more: Any) -> Any:
        return begin("-c", "from tests.quick import main; main()", *words[2:], **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Child", quickly)
        yield


async def stopped(screen: QuantizeScreen) -> int:
    """The run's process, once its quantizer waits."""
    assert screen._process is not None
    pid = screen._process._process.pid
    await wait_until(lambda: stopping.waiting(pid))
    return pid


async def test_a_build_is_stopped_goes_on_and_its_files_can_be_used(
    app: IngotApp, float_gguf: Path, tmp_path: Path
) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_screen(pilot)
        fill(screen, float_gguf, tmp_path / "o", "q4_0")
        screen.query_one("#measure", Check).toggle()
        assert screen.leaving() is None

        async def asked(key: str, answer: str) -> None:
            await pilot.press(key)
            await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press(answer)
            await wait_until(lambda: not isinstance(app.screen, ConfirmScreen))

        with held(tmp_path / "held", float_gguf):
            await pilot.press("ctrl+g")
            await wait_until(lambda: "▶ quantizing to" in text_of(screen, "#stages"))
            await stopped(screen)
            first = screen._process
            assert first is not None
            await pilot.press("ctrl+g")  # a second one at the same time
            await wait_until(lambda: any("is in progress" in n.message for n in app._notifications))
            assert screen._process is first
            assert "Stop" in offered(screen)
            await asked("escape", "n")
            assert not first.stopping
            await asked("escape", "y")
            await wait_until(lambda: state_of(screen) is RunState.STOPPED)
            assert "stopped; starting it again resumes" in text_of(screen, "#files")
            await wait_until(lambda: "Stop" not in offered(screen))

        front = screen.query_one("#run-front", FrontChart)
        assert not front.marks
        with short_speeds():
            await pilot.press("ctrl+g")
            await wait_until(lambda: screen.running)
        await wait_until(lambda: page(screen) == "result", 300)
        assert state_of(screen) is RunState.DONE
        told = text_of(screen, "#files")
        assert "1 of 1 file ready" in told
        assert re.search(r"✓ q4_0  done: [\d.]+ MB", told)
        table, files = screen.query_one(FileTable), screen.query_one("#chart", FrontChart)
        await wait_until(lambda: screen.focused is table)
        (point,) = read_result(tmp_path / "o").points
        for chart in (front, files):
            (mark,) = chart.marks
            assert (mark.x, mark.y) == (point.megabytes, point.divergence)
        # What was measured is now on the cards.
        await wait_until(lambda: "same top" in card_of(screen, "q4_0").prospect.quality_text)

        await pilot.press("o")
        report = str(tmp_path / "o" / "report.html")
        await wait_until(lambda: any(report in n.message for n in app._notifications))
        assert app.clipboard == report
        assert table.record is not None
        recipe = table.record.recipe
        await pilot.press("enter")
        await wait_until(lambda: app.current_mode == "chat")
        await wait_until(lambda: app.services.host.engine is not None)
        assert recipe in app.services.host.label

        # Leaving while it builds asks, and ends the run.
        fill(screen, float_gguf, tmp_path / "more", "q5_0")
        with held(tmp_path / "more-held", float_gguf):
            await pilot.press("f5", "ctrl+g")
            await wait_until(lambda: screen.running)
            pid = await stopped(screen)
        await pilot.press("f2", "ctrl+q")
        await wait_until(lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await wait_until(lambda: not app.is_running)
    await wait_until(lambda: not psutil.pid_exists(pid))


async def test_a_run_that_ends_early_says_what_to_do(app: IngotApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_screen(pilot)
        screen._turn_to("run")
        shown = run_in_the_middle()
        progress, bar = screen.query_one(QuantizeProgress), screen.query_one(ProgressBar)
        panel = screen.query_one("#quantize-ended")
        progress.show(shown, 1270.0)
        await wait_until(lambda: bar.display and not panel.display)
        assert bar.percentage == pytest.approx(131 / 291)
        shown.ended(1, "out of memory")
        progress.show(shown, 1280.0)
        await wait_until(lambda: panel.display and not bar.display)
        assert (panel.border_title, panel.has_class("-failed")) == ("The build failed", True)
        assert "out of memory\nWhat is finished is kept" in text_of(screen, "#ended-text")
