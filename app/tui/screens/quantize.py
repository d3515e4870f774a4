"""Making files of a model: what to build, how it goes, what came out."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, TabbedContent, TabPane

from app.builds.child import MeltProcess
from app.builds.progress import State
from app.options import ModelOptions
from app.tui.app import app_of
from app.tui.screens.confirm import ConfirmScreen
from app.tui.widgets.quantize_form import QuantizeForm
from app.tui.widgets.quantize_result import QuantizeResult
from app.tui.widgets.quantize_run import QuantizeRun
from runtimes.errors import IngotError, ModelError

if TYPE_CHECKING:
    from app.builds.forecast import Forecast
    from app.builds.results import Result
    from app.builds.settings import Settings

_TICK_S = 0.25
_TABS = ("form", "run", "result")
_FOCUS = {"form": "#model", "run": "#log", "result": "#files-table"}
_WAIT_S = 3.0  # for a run that is stopped because the app ends


class QuantizeScreen(Screen[None]):
    """One run at a time, in a process of its own; it goes on while other screens are shown."""

    CSS_PATH = "quantize.tcss"
    HELP = """
    Makes small files of a model: GGUF for llama.cpp and ONNX for ONNX Runtime, checked and
    measured against the original. The same as the command `quantize`.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "build", "Build", id="quantize.build"),
        Binding("escape", "stop", "Stop", id="quantize.stop"),
        Binding("f10", "tab(1)", "Next page", id="quantize.next"),
        # First of all: what scrolls on a page has these two keys for itself.
        Binding(
            "ctrl+pagedown",
            "tab(1)",
            "Page after",
            id="quantize.after",
            show=False,
            priority=True,
        ),
        Binding(
            "ctrl+pageup",
            "tab(-1)",
            "Page before",
            id="quantize.before",
            show=False,
            priority=True,
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._process: MeltProcess | None = None
        self._timer: Timer | None = None
        self._starting = False

    def compose(self) -> ComposeResult:
        with TabbedContent(initial="form"):
            with TabPane("1 Choose", id="form"):
                yield QuantizeForm(id="quantize-form")
            with TabPane("2 Build", id="run"):
                yield QuantizeRun(id="quantize-run")
            with TabPane("3 Files", id="result"):
                yield QuantizeResult(id="quantize-result")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(QuantizeResult).show(None)
        self.query_one("#model").focus()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    # Starting

    @on(QuantizeForm.Start)
    def action_build(self) -> None:
        if self.running or self._starting:
            self.notify("A run is in progress; esc stops it.", severity="warning")
            return
        self._starting = True
        self._start()

    @work(exit_on_error=False, group="start")
    async def _start(self) -> None:
        settings = self.query_one(QuantizeForm).settings
        try:
            forecast = await asyncio.to_thread(_forecast, settings)
            if forecast.problems:
                raise ModelError("\n".join(forecast.problems))
            self._process = await asyncio.to_thread(MeltProcess, settings)
        except (IngotError, OSError) as error:
            title = "This cannot be built"
            self.notify(str(error), title=title, severity="error", timeout=15, markup=False)
            return
        finally:
            self._starting = False
        self._timer = self._timer or self.set_interval(_TICK_S, self._tick)
        self._tick()
        self._turn_to("run")

    def _tick(self) -> None:
        process = self._process
        if process is None:
            return
        goes_on = process.poll()
        self.query_one(QuantizeRun).show(process.melt, time.time())
        if goes_on:
            return
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.refresh_bindings()
        self._finished(process)

    def _finished(self, process: MeltProcess) -> None:
        melt = process.melt
        match melt.state:
            case State.DONE:
                self.notify(f"{process.settings.model} is built.", markup=False)
            case State.PARTLY:
                text = f"{', '.join(melt.kept_back)}: too far from the original, not published."
                self.notify(text, severity="warning", timeout=15, markup=False)
            case State.FAILED:
                title = "The build failed"
                self.notify(melt.error, title=title, severity="error", timeout=15, markup=False)
        folder = melt.manifest.parent if melt.manifest else _folder(melt.files)
        if folder is not None:
            self._read(folder, turn=melt.state is State.DONE)

    # What is there

    @on(QuantizeForm.Foreseen)
    def _foreseen(self, event: QuantizeForm.Foreseen) -> None:
        """Show the files that the model's folder has from earlier runs."""
        if not self.running and event.forecast is not None:
            self._read(event.forecast.out, turn=False)

    @work(exit_on_error=False, exclusive=True, group="read")
    async def _read(self, folder: Path, *, turn: bool) -> None:
        result: Result | None = None
        try:
            result = await asyncio.to_thread(_result, folder)
        except ModelError as error:
            if turn:
                self.notify(str(error), severity="error", markup=False)
        self.query_one(QuantizeResult).show(result)
        if turn and result is not None:
            self._turn_to("result")

    @on(QuantizeResult.Chat)
    def _chat(self, event: QuantizeResult.Chat) -> None:
        options = ModelOptions(recipe=event.row.recipe)
        app = app_of(self)
        app.load_model(str(event.result.folder), options)
        app.switch_mode("chat")

    @on(QuantizeResult.Report)
    def _report(self, event: QuantizeResult.Report) -> None:
        """Show where the page is; open it where there is a desktop to open it on."""
        path = event.result.report
        if path is None:
            self.notify("There is no report yet; building writes it.", severity="warning")
            return
        self.app.copy_to_clipboard(str(path))
        self.notify(f"{path}\n(its path is copied)", title="Report", timeout=10, markup=False)
        if _has_desktop() and not self.app.is_headless:
            self.app.open_url(path.resolve().as_uri())

    # Stopping

    def interrupt(self) -> bool:
        if not self.running or self._process is None or self._process.stopping:
            return False
        self._process.stop()
        return True

    def leaving(self) -> str | None:
        if not self.running or self._process is None or self._process.stopping:
            return None
        return (
            f"{self._process.settings.model} is being quantized. That ends with the app; what is"
            " finished is kept, and building it again resumes from there."
        )

    @work(exit_on_error=False, group="stop")
    async def action_stop(self) -> None:
        if not self.running:
            return
        question = "Stop this run? What is finished is kept: building again resumes from there."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self.interrupt()

    async def on_unmount(self) -> None:
        """A run ends with the app; what is finished is kept."""
        if self.interrupt() and self._process is not None:
            await asyncio.to_thread(self._process.wait, _WAIT_S)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.running if action == "stop" else True

    # Pages

    def action_tab(self, step: int) -> None:
        shown = self.query_one(TabbedContent).active
        self._turn_to(_TABS[(_TABS.index(shown) + step) % len(_TABS)])

    def _turn_to(self, name: str) -> None:
        """Show a page, and put the cursor where one works on it."""
        self.query_one(TabbedContent).active = name
        self.refresh_bindings()
        # What is not shown yet takes no focus.
        self.call_after_refresh(self.query_one(_FOCUS[name]).focus)


def _forecast(settings: Settings) -> Forecast:
    from app.builds.forecast import foresee

    return foresee(settings)


def _result(folder: Path) -> Result:
    from app.builds.results import read_result

    return read_result(folder)


def _folder(files: dict[str, Path]) -> Path | None:
    """Where published files lie."""
    return next((path.parent for path in files.values()), None)


def _has_desktop() -> bool:
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or sys.platform in ("darwin", "win32")
