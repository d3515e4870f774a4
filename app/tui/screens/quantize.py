"""Making files of a model: what to build, how it goes, what came out."""

import asyncio
import time
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import TabbedContent, TabPane

from app.builds.results import read_result
from app.builds.run import QuantizeProcess, RunState
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.quantize_files import QuantizeResult
from app.tui.widgets.quantize_form import QuantizeForm, blamed, foreseen
from app.tui.widgets.quantize_run import QuantizeProgress
from app.tui.widgets.recipe_chart import FrontChart
from runtimes.errors import IngotError, ModelError

_TICK_S = 0.25
_TABS = ("form", "run", "result")
_FOCUS = {"form": "#model", "run": "#quantize-log CollapsibleTitle", "result": "#files-table"}
_WAIT_S = 3.0  # for a run that is stopped because the app ends


class QuantizeScreen(ModeScreen):
    """One run at a time, in a process of its own; it continues while other screens are shown."""

    MODE = "quantize"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012  (as Textual has it)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    CSS_PATH: ClassVar[list[str]] = ["../widgets/form.tcss", "quantize.tcss"]  # type: ignore[assignment]
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
            "ctrl+pagedown", "tab(1)", "Page after", id="quantize.after", show=False, priority=True
        ),
        Binding(
            "ctrl+pageup", "tab(-1)", "Page before", id="quantize.before", show=False, priority=True
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._process: QuantizeProcess | None = None
        self._busy = False

    def contents(self) -> ComposeResult:
        with TabbedContent(initial="form"):
            with TabPane("1 Choose", id="form"):
                yield QuantizeForm(id="quantize-form")
            with TabPane("2 Build", id="run"):
                yield QuantizeProgress(id="quantize-run")
            with TabPane("3 Files", id="result"):
                yield QuantizeResult(id="quantize-result")

    def on_mount(self) -> None:
        self.query_one("#model").focus()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    # Building

    @work(exit_on_error=False, group="build")
    async def action_build(self) -> None:
        if self._busy:
            self.notify("A run is in progress; esc stops it.", severity="warning")
            return
        self._busy = True
        try:
            self._process = await self._started()
            if self._process is not None:
                await self._follow(self._process)
        finally:
            self._busy = False

    async def _started(self) -> QuantizeProcess | None:
        form = self.query_one(QuantizeForm)
        settings = form.settings
        try:
            forecast = await asyncio.to_thread(foreseen, settings)
            wrong = forecast.wrong
            if not wrong:
                self._read(forecast.out, turn=False)
                return await asyncio.to_thread(QuantizeProcess, settings)
        except (IngotError, OSError) as error:
            wrong = (blamed(error),)
        form.explain(wrong)
        self._turn_to("form")
        self.call_after_refresh(form.action_next_error)
        return None

    async def _follow(self, process: QuantizeProcess) -> None:
        self._turn_to("run")
        goes_on, known = True, 0
        while goes_on:
            goes_on = process.poll()
            self.query_one(QuantizeProgress).show(process.run, time.time())
            if len(process.run.files) > known:  # a file is there, and measured
                known = len(process.run.files)
                self._read(next(iter(process.run.files.values())).parent, turn=False)
            await asyncio.sleep(_TICK_S if goes_on else 0)
        self.refresh_bindings()
        self.query_one(QuantizeForm).look_later()  # cards have what was measured
        run = process.run
        match run.state:
            case RunState.DONE:
                self.notify(f"{process.settings.model} is built.", markup=False)
            case RunState.PARTLY:
                text = f"{', '.join(run.kept_back)}: too far from the original, not published."
                self.notify(text, severity="warning", timeout=15, markup=False)
            case RunState.FAILED:
                self.notify("The build failed.", severity="error")
        written = run.manifest or next(iter(run.files.values()), None)
        if written is not None:
            self._read(written.parent, turn=run.state is RunState.DONE)

    # What is there

    @on(QuantizeForm.Foreseen)
    def _foreseen(self, event: QuantizeForm.Foreseen) -> None:
        """Show the files that the model's folder has from earlier runs."""
        if not self.running and event.forecast is not None:
            self._read(event.forecast.out, turn=False)

    @on(QuantizeResult.Removed)
    def _removed(self) -> None:
        shown = self.query_one(QuantizeResult).result
        if shown is not None:
            self._read(shown.folder, turn=False)
        self.query_one(QuantizeForm).look_later()  # its card is no longer of a file that is there

    @work(exit_on_error=False, exclusive=True, group="read")
    async def _read(self, folder: Path, *, turn: bool) -> None:
        result = None
        try:
            result = await asyncio.to_thread(read_result, folder)
        except ModelError as error:
            if turn:
                self.notify(str(error), severity="error", markup=False)
        self.query_one(QuantizeResult).show(result)
        self.query_one("#run-front", FrontChart).show_result(result)
        if turn and result is not None:
            self._turn_to("result")

    # Stopping

    @property
    def _stoppable(self) -> QuantizeProcess | None:
        process = self._process
        return process if process and process.running and not process.stopping else None

    def interrupt(self) -> bool:
        if self._stoppable is None:
            return False
        self._stoppable.stop()
        return True

    def leaving(self) -> str | None:
        if self._stoppable is None:
            return None
        return (
            f"{self._stoppable.settings.model} is being quantized. That ends with the app; what is"
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
        self.set_focus(self.query_one(_FOCUS[name]))
