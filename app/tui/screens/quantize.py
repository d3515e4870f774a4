"""The quantize mode: the form, a run while it lasts, and the files that came out."""

import asyncio
import time
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Collapsible, ProgressBar, Static, TabbedContent, TabPane

from app.builds.prospects import foresee
from app.builds.results import read_result
from app.builds.run import (
    SIGNS,
    QuantizeProcess,
    QuantizeRun,
    RunState,
    headline,
    recipe_notes,
    stage_line,
    stage_state,
)
from app.tui.app import app_of
from app.tui.keys import bind, key
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.textual_patches import Pane, Plain, background, latest
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.quantize_files import FrontChart, QuantizeResult
from app.tui.widgets.quantize_form import QuantizeForm, blamed
from runtimes.errors import IngotError, ModelError

_NOTHING = "Nothing runs. Choose a model and recipes, and press Build."
_COLORS = {
    RunState.WAITING: "$text-muted",
    RunState.RUNNING: "bold $text-primary",
    RunState.DONE: "$text-success",
    RunState.KEPT_BACK: "$text-warning",
    RunState.STOPPED: "$text-warning",
    RunState.FAILED: "$text-error",
}
_TITLES = {
    RunState.PARTLY: "Not every file is there",
    RunState.STOPPED: "Stopped",
    RunState.FAILED: "The build failed",
}
_RESUME = "What is finished is kept: ctrl+g resumes from there."


class QuantizeProgress(Vertical):
    """The recipes and the step that runs stay in sight; all steps and notes are folded away."""

    HELP = """
    The files of this run with their states, the step that runs now with the time that it has left,
    and the chart of size against the distance to the original, in which each file appears as soon
    as it is measured. **Steps and notes** has all steps with the time that each took, and the
    messages of quantize. A stopped run keeps what is finished: starting it again resumes from
    there.
    """

    def compose(self) -> ComposeResult:
        with Horizontal(id="quantize-live"):
            with Pane("Files", id="quantize-steps"):
                yield Plain(_NOTHING, id="files")
                yield Plain(id="step")
                yield ProgressBar(show_percentage=False, show_eta=False, id="step-bar")
            yield FrontChart(id="run-front")
        with VerticalScroll(id="quantize-ended", classes="pane"):
            yield Plain(id="ended-text")
        with Collapsible(title="Steps and notes", id="quantize-log"), VerticalScroll(id="log"):
            yield Plain(id="stages")

    def show(self, run: QuantizeRun, now: float) -> None:
        """Bring everything up to date; ``now`` is in seconds since 1970."""
        notes = recipe_notes(run)
        width = max((len(name) for name, _, _ in notes), default=0)
        lines = [Content.styled(headline(run, now), "bold"), Content("")]
        for name, state, more in notes:
            sign, color = SIGNS.get(state, "·"), _COLORS[state]
            told = f"{state.value}: {more}" if more else state.value
            parts = ((f"{sign} ", color), f"{name:<{width}}  ", (told, color))
            lines.append(Content.assemble(*parts))
        self.query_one("#files", Static).update(Content("\n").join(lines))
        self._show_step(run, now)
        self._show_log(run, now)
        self._show_end(run)

    def _show_step(self, run: QuantizeRun, now: float) -> None:
        running = run.running()
        stage = running[-1] if running and run.state is RunState.RUNNING else None
        self.set_class(stage is not None, "-runs")
        if stage is not None:
            state = (stage_state(stage, now), "$text-muted")
            step, bar = self.query_one("#step", Static), self.query_one(ProgressBar)
            step.update(Content.assemble(f"\n{stage.text}\n", state))
            bar.update(total=stage.total or None, progress=min(stage.done, stage.total or 0.0))

    def _show_log(self, run: QuantizeRun, now: float) -> None:
        said = [stage_line(stage, now) for stage in run.stages]
        if run.notes:
            said += ["", "Notes", *(f"  {note}" for note in run.notes)]
        log = self.query_one("#log", VerticalScroll)
        follow = log.scroll_offset.y >= log.max_scroll_y
        self.query_one("#stages", Static).update("\n".join(said))
        if follow:
            log.scroll_end(animate=False)

    def _show_end(self, run: QuantizeRun) -> None:
        """Show what went wrong, and what to do about it."""
        self.set_class(run.state in _TITLES, "-ended")
        if run.state in _TITLES:
            panel = self.query_one("#quantize-ended")
            panel.set_class(run.state is RunState.FAILED, "-failed")
            panel.border_title = _TITLES[run.state]
            text = "\n".join(filter(None, (run.error, _RESUME)))
            self.query_one("#ended-text", Static).update(text)


_TICK_S = 0.25
_FOCUS = {"form": "#model", "run": "#quantize-log CollapsibleTitle", "result": "#files-table"}
_WAIT_S = 3.0  # for a run that is stopped because the app ends


class QuantizeScreen(ModeScreen):
    """One run at a time, in a process of its own; it continues while other screens are shown."""

    MODE = "quantize"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-tall"), (50, "-high")]
    CSS_PATH = ["../widgets/form.tcss", "quantize.tcss"]
    HELP = """
    Makes small files of a model: GGUF for llama.cpp and ONNX for ONNX Runtime, checked and
    measured against the original. The same as the command `quantize`.
    """
    BINDINGS = [
        bind("ctrl+g", "quantize.build", "Build"),
        bind("escape", "quantize.stop", "Stop"),
        bind("f10", "quantize.next", "Next page", action="tab(1)"),
        # First of all: what scrolls on a page has these two keys for itself.
        key("ctrl+pagedown", "quantize.after", "Page after", action="tab(1)"),
        key("ctrl+pageup", "quantize.before", "Page before", action="tab(-1)"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._process: QuantizeProcess | None = None
        self._form = QuantizeForm()
        self._result = QuantizeResult()
        self._busy = False

    def contents(self) -> ComposeResult:
        with TabbedContent(initial="form"):
            with TabPane("1 Choose", id="form"):
                yield self._form
            with TabPane("2 Build", id="run"):
                yield QuantizeProgress(id="quantize-run")
            with TabPane("3 Files", id="result"):
                yield self._result

    def on_mount(self) -> None:
        self.query_one("#model").focus()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    # Building

    @background
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
        settings = self._form.settings
        try:
            forecast = await asyncio.to_thread(foresee, settings)
            wrong = forecast.wrong
            if not wrong:
                self._read(forecast.out)
                return await asyncio.to_thread(QuantizeProcess, settings)
        except (IngotError, OSError) as error:
            wrong = (blamed(error),)
        self._form.explain(wrong)
        self._turn_to("form")
        self.call_after_refresh(self._form.action_next_error)
        return None

    async def _follow(self, process: QuantizeProcess) -> None:
        self._turn_to("run")
        run, goes_on, known = process.run, True, 0
        while goes_on:
            goes_on = process.poll()
            self.query_one(QuantizeProgress).show(run, time.time())
            if len(run.files) > known:  # a file is there, and measured
                known = len(run.files)
                self._read(next(iter(run.files.values())).parent)
            await asyncio.sleep(_TICK_S if goes_on else 0)
        self.refresh_bindings()
        self._form.look_later()  # cards have what was measured
        app_of(self).ended(headline(run, time.time()), run.seconds)
        match run.state:
            case RunState.DONE:
                self.notify(f"{process.settings.model} is built.")
            case RunState.PARTLY:
                text = f"{', '.join(run.kept_back)}: too far from the original, not published."
                self.notify(text, severity="warning", timeout=15)
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
            self._read(event.forecast.out)

    @on(QuantizeResult.Removed)
    def _removed(self) -> None:
        if self._result.result is not None:
            self._read(self._result.result.folder)
        self._form.look_later()  # its card is no longer of a file that is there

    @latest
    async def _read(self, folder: Path, *, turn: bool = False) -> None:
        result = None
        try:
            result = await asyncio.to_thread(read_result, folder)
        except ModelError as error:
            if turn:
                self.tell_error(error)
        self._result.show(result)
        self.query_one("#run-front", FrontChart).show_result(result)
        if turn and result:
            self.call_after_refresh(self._turn_to, "result")

    # Stopping

    def interrupt(self) -> bool:
        process = self._process
        return process is not None and process.stop()

    def leaving(self) -> str | None:
        process = self._process
        if process is None or process.stopping or not process.running:
            return None
        return (
            f"{process.settings.model} is being quantized. That ends with the app; what is"
            " finished is kept, and building it again resumes from there."
        )

    @background
    async def action_stop(self) -> None:
        question = "Stop this run? What is finished is kept: building again resumes from there."
        if await self.app.push_screen_wait(ConfirmScreen(question, "Stop")):
            self.interrupt()

    async def on_unmount(self) -> None:
        """A run ends with the app; what is finished is kept."""
        if self.interrupt() and self._process is not None:
            await asyncio.to_thread(self._process.wait, _WAIT_S)

    def can(self, action: str) -> bool:
        return self.running if action == "stop" else True

    # Pages

    def action_tab(self, step: int) -> None:
        names = list(_FOCUS)
        at = names.index(self.query_one(TabbedContent).active)
        self._turn_to(names[(at + step) % len(names)])

    def _turn_to(self, name: str) -> None:
        """Show a page, and put the cursor where one works on it."""
        self.query_one(TabbedContent).active = name
        self.refresh_bindings()
        self.set_focus(self.query_one(_FOCUS[name]))
