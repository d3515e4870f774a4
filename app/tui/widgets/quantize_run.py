"""A run while it goes on, and what became of it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.builds.progress import Melt, State
from app.builds.text import headline, recipe_lines, stage_line

_NOTHING = "Nothing runs. Choose a model and recipes, and press Build."


class QuantizeRun(Vertical):
    """The recipes stay in sight; stages and notes scroll below them."""

    HELP = """
    The files of this run, the stages with the time that each took or has left, and the messages of
    quantize. A stopped run keeps what is finished: starting it again resumes from there.
    """
    DEFAULT_CSS = """
    QuantizeRun {
        padding: 0 1;
        & > #files { height: auto; max-height: 50%; margin-bottom: 1; }
        & > #log { height: 1fr; }
    }
    """

    def compose(self) -> ComposeResult:
        yield Static(_NOTHING, id="files", markup=False)
        with VerticalScroll(id="log"):
            yield Static(id="stages", markup=False)

    def show(self, melt: Melt, now: float) -> None:
        """Bring everything up to date; ``now`` is in seconds since 1970."""
        head = Content.styled(headline(melt, now), "bold")
        lines = [head, *(Content(line) for line in recipe_lines(melt))]
        self.query_one("#files", Static).update(Content("\n").join(lines))
        said = [stage_line(stage, now) for stage in melt.stages]
        if melt.notes:
            said += ["", "Notes", *(f"  {note}" for note in melt.notes)]
        if melt.error and melt.state in (State.FAILED, State.PARTLY):
            said += ["", "What went wrong", *(f"  {line}" for line in melt.error.splitlines())]
        log = self.query_one("#log", VerticalScroll)
        follow = log.scroll_offset.y >= log.max_scroll_y
        self.query_one("#stages", Static).update("\n".join(said))
        if follow:
            log.scroll_end(animate=False)
