"""A run while it lasts, and what became of it."""

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.builds.progress import QuantizeRun, State, headline, recipe_lines, stage_line

_NOTHING = "Nothing runs. Choose a model and recipes, and press Build."


class QuantizeProgress(Vertical):
    """The recipes stay in sight; stages and notes scroll below them."""

    HELP = """
    The files of this run, the stages with the time that each took or has left, and the messages of
    quantize. A stopped run keeps what is finished: starting it again resumes from there.
    """
    DEFAULT_CSS = """
    QuantizeProgress {
        padding: 0 1;
        & > #files { height: auto; max-height: 50%; margin-bottom: 1; }
        & > #log { height: 1fr; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Static(_NOTHING, id="files", markup=False)
        with VerticalScroll(id="log"):
            yield Static(id="stages", markup=False)

    def show(self, run: QuantizeRun, now: float) -> None:
        """Bring everything up to date; ``now`` is in seconds since 1970."""
        head = Content.styled(headline(run, now), "bold")
        lines = [head, *(Content(line) for line in recipe_lines(run))]
        self.query_one("#files", Static).update(Content("\n").join(lines))
        said = [stage_line(stage, now) for stage in run.stages]
        if run.notes:
            said += ["", "Notes", *(f"  {note}" for note in run.notes)]
        if run.error and run.state in (State.FAILED, State.PARTLY):
            said += ["", "What went wrong", *(f"  {line}" for line in run.error.splitlines())]
        log = self.query_one("#log", VerticalScroll)
        follow = log.scroll_offset.y >= log.max_scroll_y
        self.query_one("#stages", Static).update("\n".join(said))
        if follow:
            log.scroll_end(animate=False)
