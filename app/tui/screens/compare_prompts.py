"""A file of prompts to several files, unattended: what is asked, how far it is, what was found."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from rich.console import Group as Lines
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, ProgressBar, Static

from app.compare.prompts import (
    CompareProgress,
    PromptsJob,
    PromptsProcess,
    check_prompts,
    labels_of,
)
from app.compare.report import (
    ballot_of,
    figures,
    notes,
    read_report,
    votes_line,
    with_votes,
    write_results,
)
from app.compare.results import PromptResult, Results
from app.figures import duration
from app.here import at_home
from app.models.catalog import ModelEntry
from app.options import SamplingOptions
from app.tui.app import app_of
from app.tui.screens.compare import AnswersScreen
from app.tui.screens.compare_blind import BlindScreen
from app.tui.screens.dialogs import AskScreen
from app.tui.widgets.compare_panes import HUES
from app.tui.widgets.form import FieldHelp, Form, Group, path_field, text_field
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.table import Table, TableColumn
from runtimes.errors import IngotError

_LOOKS = 1 / 4  # seconds between two looks at a job


class PromptsForm(Form):
    """Which prompts, and how long answers may be."""

    def compose(self) -> ComposeResult:
        yield Group(
            "A file of prompts",
            path_field("prompts", "Prompts", "questions.jsonl", "JSONL, text, CSV, a folder ..."),
            text_field("length", "Max tokens", "256", "How long an answer may be."),
            text_field("limit", "First rows", "all", "Only so many prompts."),
        )
        yield FieldHelp()

    async def look(self) -> None:
        """Nothing is shown while one types."""

    def number(self, name: str, usual: int | None) -> int | None:
        """What a field says; a wrong one is marked."""
        text = self.text_of(name).strip().replace(",", "")
        if not text:
            return usual
        if not text.isdigit() or int(text) < 1:
            self.refuse(name, "a whole number above 0")
        return int(text) if text.isdigit() else usual


class RowTable(Table[PromptResult]):
    """The prompts, with what each later file's answer is to the first one's."""

    def __init__(self) -> None:
        super().__init__([], lambda row: row.index, id="prompt-rows")

    def fill(self, results: Results) -> None:
        """Other rows."""
        self.columns = [TableColumn("row", lambda row: f"{row.index:,}", 6, right=True)]
        for number in range(1, len(results.files)):
            hue = f"file {number + 1}"
            self.columns.append(TableColumn(hue, lambda row, n=number: _mark(row, n), 12))  # type: ignore[misc]
        if any(row.expected for row in results.rows):
            self.columns.append(TableColumn("right", _right, max(5, len(results.files))))
        self.columns.append(TableColumn("prompt", lambda row: " ".join(row.prompt.split())))
        self.show(results.rows, keep=False)


class ComparePromptsScreen(ModeScreen):
    """Over the base screen of the compare mode; ``entries`` are the files chosen there."""

    MODE = "compare"
    HELP = """
    All files answer all prompts of a file, one file after another; every answer is kept, so that a
    run that was stopped goes on. **[prompts.start ctrl+g]** starts, **[prompts.back esc]** stops,
    then goes back, **[prompts.new ctrl+n]** asks something else. **enter** shows the answers to a
    prompt beside each other, **[prompts.blind alt+v]** asks which you prefer without saying which
    is which, **[prompts.save F9]** writes a report as Markdown or JSON.
    """
    CSS_PATH: ClassVar[str | PurePath | list[str | PurePath] | None] = [
        "compare.tcss",
        "../widgets/form.tcss",
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "start", "Start", id="prompts.start", priority=True),
        Binding("ctrl+n", "new", "New", id="prompts.new", priority=True),
        Binding("alt+v", "blind", "Vote blind", id="prompts.blind", priority=True),
        Binding("f9", "save", "Save", id="prompts.save", priority=True),
        Binding("escape", "back", "Back", id="prompts.back"),
    ]

    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        super().__init__()
        self.entries = tuple(entries)
        self.process: PromptsProcess | None = None
        self.job: PromptsJob | None = None
        self.results: Results | None = None
        self._looking = False

    def contents(self) -> ComposeResult:
        with VerticalScroll(id="prompts-top", can_focus=False):
            with Horizontal(id="prompts-files"):
                for number, label in enumerate(labels_of(self.entries)):
                    yield Static(label, classes=f"-hue-{number % HUES + 1}", markup=False)
            yield PromptsForm(id="prompts-form")
            with Horizontal(id="prompts-bar"):
                yield Button("Start", variant="primary", compact=True, id="start")
                yield Button("New", compact=True, id="new")
                yield Button("Vote blind", compact=True, id="blind")
                yield Button("Save", compact=True, id="save")
            with Horizontal(id="prompts-progress"):
                yield ProgressBar(100, show_eta=False)
                yield Static(id="prompts-said", markup=False)
            with Vertical(classes="pane", id="prompts-figures") as found:
                found.border_title = "Figures"
                yield Static(id="prompts-tables", markup=False)
        with Vertical(classes="pane", id="prompts-list") as rows:
            rows.border_title = "Prompts"
            yield RowTable()

    def on_mount(self) -> None:
        self.query_one("#prompts").focus()
        self.query_one("#prompts-progress").display = False
        self._offer()
        self.set_interval(_LOOKS, self._look)

    def on_unmount(self) -> None:
        """No process outlives the screen."""
        self.interrupt()

    # A run

    def action_start(self) -> None:
        """Run what the form says; what was answered before is not asked again."""
        form = self.query_one(PromptsForm)
        if self.process is not None:
            return
        form.refuse_all({})
        name = form.text_of("prompts").strip()
        length, limit = form.number("length", 256), form.number("limit", None)
        try:
            if not name:
                raise IngotError("name a file of prompts")
            path = check_prompts(at_home(name))
        except IngotError as error:
            form.refuse("prompts", str(error).removeprefix("--prompts: "))
        if form.errors:
            form.action_next_error()
            return
        sampling = SamplingOptions(max_tokens=length or 256)
        self.job = PromptsJob(self.entries, path, sampling, limit=limit)
        try:
            self.process = PromptsProcess(self.job)
        except OSError as error:
            self.say(f"It cannot be started: {error}", "bad")
            return
        self.results = None
        self.query_one("#prompts-progress").display = True
        self._show(CompareProgress())
        self._offer()

    @work(exit_on_error=False, group="look")
    async def _look(self) -> None:
        process = self.process
        if process is None or self._looking:
            return
        self._looking = True
        try:
            progress = await asyncio.to_thread(process.poll)
        finally:
            self._looking = False
        self._show(progress)
        if progress.running or process is not self.process:
            return
        self.process = None
        if progress.error:
            self.say(f"✗ {progress.error}", "bad")
        elif not progress.stopped:
            await self._read()
        self._offer()

    def _show(self, progress: CompareProgress) -> None:
        files = len(self.entries)
        self.query_one("#prompts-progress ProgressBar", ProgressBar).update(
            progress=100 * progress.share(files)
        )
        if progress.stopped:
            self.say("Stopped; starting again goes on from here.", "wait")
            return
        parts = [f"file {progress.file + 1} of {files}"]
        if progress.rows is None:
            parts.append("reading")
        else:
            parts.append(f"{progress.done:,} of {progress.rows * files:,} answers")
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        if progress.running and progress.left_s is not None:
            parts.append(f"about {duration(progress.left_s)} left")
        self.say(" · ".join(parts), "")

    def say(self, text: str, how: str) -> None:
        """Beside the bar; ``how`` is a class of text."""
        said = self.query_one("#prompts-said", Static)
        said.set_classes(how)
        said.update(text)

    async def _read(self) -> None:
        """What the command found."""
        assert self.job is not None
        folder = self.job.folder
        try:
            self.results = await asyncio.to_thread(lambda: self._counted(read_report(folder)))
        except (IngotError, OSError) as error:
            self.say(f"✗ {error}", "bad")
            return
        table = self.query_one(RowTable)
        self.show_figures()
        table.fill(self.results)
        self.query_one("#prompts-progress").display = False
        self._offer()
        table.focus()

    def _counted(self, results: Results) -> Results:
        assert self.job is not None
        return with_votes(results, ballot_of(results, self.job.folder))

    def show_figures(self) -> None:
        """The tables of the command, and votes."""
        results = self.results
        if results is None:
            return
        colours = app_of(self).theme_variables
        hues = [colours[f"hue-{number}"] for number in range(1, HUES + 1)]
        plain = any(colour.startswith("ansi") for colour in hues)
        lines = [Text(votes_line(votes, results), "bold") for votes in results.votes]
        more = [Text(note, "dim") for note in notes(results)]
        files, pairs = figures(results, () if plain else hues)
        shown = Lines(files, "", pairs, "", *lines, *more)
        self.query_one("#prompts-tables", Static).update(shown)

    # Keys and buttons

    def _offer(self) -> None:
        self.refresh_bindings()
        found = self.results is not None
        self.query_one("#start", Button).disabled = self.process is not None
        for name in ("#new", "#blind", "#save", "#prompts-figures", "#prompts-list"):
            self.query_one(name).display = found
        for name in ("#start", "#prompts-form"):
            self.query_one(name).display = not found

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        found = self.results is not None
        can = {"start": self.process is None and not found}
        return (can | dict.fromkeys(("new", "blind", "save"), found)).get(action, True)

    @on(Button.Pressed)
    async def _pressed(self, event: Button.Pressed) -> None:
        await self.run_action(str(event.button.id))

    def interrupt(self) -> bool:
        if self.process is None:
            return False
        self.process.stop()
        return True

    def leaving(self) -> str | None:
        return "A comparison is not finished." if self.process is not None else None

    def action_back(self) -> None:
        """Stop what runs; else leave."""
        if not self.interrupt():
            self.dismiss()

    def action_new(self) -> None:
        """Back to the form: other prompts, or longer answers."""
        self.results = None
        self.query_one("#prompts-progress").display = False
        self._offer()
        self.query_one("#prompts").focus()

    @on(Table.Selected)
    def _open(self) -> None:
        row = self.query_one(RowTable).record
        if row is not None and self.results is not None:
            self.app.push_screen(AnswersScreen(self.results, self.results.rows.index(row)))

    @work(exit_on_error=False, group="dialog")
    async def action_blind(self) -> None:
        """Vote, and count."""
        if self.results is None or self.job is None:
            return
        results, folder = self.results, self.job.folder
        ballot = await asyncio.to_thread(ballot_of, results, folder)
        if not ballot.pairs:
            self.notify("All answers are the same: there is nothing to prefer.")
            return
        await self.app.push_screen_wait(BlindScreen(ballot))
        self.results = replace(results, votes=ballot.count())
        self.show_figures()

    @work(exit_on_error=False, group="dialog")
    async def action_save(self) -> None:
        """Write the report that the command writes."""
        if self.results is None:
            return
        name = time.strftime("compare-%Y%m%d-%H%M%S.md")
        given = await self.app.push_screen_wait(AskScreen("Save as (.md or .json)", name))
        if given is None:
            return
        path = at_home(given)
        try:
            await asyncio.to_thread(write_results, self.results, path)
        except (IngotError, OSError) as error:
            why = str(error).removeprefix("--output: ")
            self.notify(why, title="Not saved", severity="error", markup=False)
        else:
            self.notify(f"Saved: {path}", markup=False)


def _mark(row: PromptResult, number: int) -> Text:
    """How a later file's answer is to the first one's."""
    same, at = row.same(number), row.parts[number - 1]
    if same is None:
        return Text("✗ failed")
    return Text("= same", "dim") if same else Text(f"≠ at {at:,}")


def _right(row: PromptResult) -> str:
    signs = {True: "✓", False: "✗", None: "·"}
    return "".join(signs[told.right] for told in row.answers)
