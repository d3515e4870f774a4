"""A run while it lasts: what is done, what runs now and how long that takes, and the chart that its
measured files fill."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Collapsible, ProgressBar, Static

from app.builds.run import (
    QuantizeRun,
    RunStage,
    RunState,
    headline,
    recipe_notes,
    stage_line,
    stage_state,
)
from app.tui.widgets.recipe_chart import FrontChart

_NOTHING = "Nothing runs. Choose a model and recipes, and press Build."
_COLORS = {
    RunState.WAITING: "$text-muted",
    RunState.RUNNING: "bold $text-primary",
    RunState.DONE: "$text-success",
    RunState.KEPT_BACK: "$text-warning",
    RunState.STOPPED: "$text-warning",
    RunState.FAILED: "$text-error",
}
_SIGNS = {RunState.RUNNING: "▶", RunState.DONE: "✓", RunState.FAILED: "✗", RunState.KEPT_BACK: "✗"}
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
            with Vertical(id="quantize-steps", classes="pane") as steps:
                steps.border_title = "Files"
                yield Static(_NOTHING, id="files", markup=False)
                yield Static(id="step", markup=False)
                yield ProgressBar(show_percentage=False, show_eta=False, id="step-bar")
            yield FrontChart(id="run-front")
        with VerticalScroll(id="quantize-ended", classes="pane"):
            yield Static(id="ended-text", markup=False)
        with Collapsible(title="Steps and notes", id="quantize-log"), VerticalScroll(id="log"):
            yield Static(id="stages", markup=False)

    def on_mount(self) -> None:
        self.query_one("#step-bar").display = False
        self.query_one("#quantize-ended").display = False
        self.query_one(FrontChart).show_result(None)

    def show(self, run: QuantizeRun, now: float) -> None:
        """Bring everything up to date; ``now`` is in seconds since 1970."""
        notes = recipe_notes(run)
        width = max((len(name) for name, _, _ in notes), default=0)
        lines = [Content.styled(headline(run, now), "bold"), Content("")]
        for name, state, more in notes:
            told = f"{state.value}{f': {more}' if more else ''}"
            lines.append(
                Content.assemble(
                    (f"{_SIGNS.get(state, '·')} ", _COLORS[state]),
                    f"{name:<{width}}  ",
                    (told, _COLORS[state]),
                )
            )
        self.query_one("#files", Static).update(Content("\n").join(lines))
        self._show_step(run, now)
        self._show_log(run, now)
        self._show_end(run)

    def _show_step(self, run: QuantizeRun, now: float) -> None:
        running = run.running()
        stage: RunStage | None = running[-1] if running and run.state is RunState.RUNNING else None
        bar = self.query_one("#step-bar", ProgressBar)
        bar.display = stage is not None
        self.query_one("#step", Static).display = stage is not None
        if stage is not None:
            text = Content(f"\n{stage.text}\n")
            text = text.append(Content.styled(stage_state(stage, now), "$text-muted"))
            self.query_one("#step", Static).update(text)
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
        """What went wrong, and what to do about it."""
        panel, ended = self.query_one("#quantize-ended"), run.state in _TITLES
        panel.display = ended
        self.set_class(ended, "-ended")
        if ended:
            panel.set_class(run.state is RunState.FAILED, "-failed")
            panel.border_title = _TITLES[run.state]
            text = "\n".join(filter(None, (run.error, _RESUME)))
            self.query_one("#ended-text", Static).update(text)
