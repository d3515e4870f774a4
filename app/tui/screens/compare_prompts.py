"""Comparison by a file of prompts, unattended: the form, the progress, the results, and the vote
for the better of two answers without knowing whose they are."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Group as Lines
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
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
    write_results,
)
from app.compare.results import Ballot, BlindPair, PromptResult, Results, Sided
from app.figures import duration
from app.here import at_home
from app.models.catalog import ModelEntry
from app.options import SamplingOptions
from app.tui.app import app_of
from app.tui.keys import bind
from app.tui.screens.compare import HUES, AnswersScreen, save
from app.tui.screens.dialogs import bind_first
from app.tui.textual_patches import Pane, Plain, background
from app.tui.widgets.form import FieldHelp, Form, Group, path_field, text_field
from app.tui.widgets.frame import ModeScreen
from app.tui.widgets.table import Table, TableColumn
from runtimes.errors import IngotError

_BUTTONS = {
    Sided.LEFT: "← Left is better",
    Sided.TIE: "Tie (=)",
    Sided.SKIP: "Skip (k)",
    Sided.RIGHT: "Right is better →",
}


class BlindScreen(ModeScreen):
    """The pairs of a ballot that were not judged yet; at the end what the votes say."""

    MODE = "compare"
    HELP = """
    Two answers to the same prompt, in an order and on sides that chance decides; their files are
    named at the end. **[blind.left ←]** or **[blind.right →]** is better, **[blind.tie =]** is a
    tie, **[blind.skip k]** says nothing, **[blind.undo ctrl+z]** takes the last vote back. Every
    vote is kept: you can leave and go on later.
    """
    CSS_PATH = "compare.tcss"
    BINDINGS = [
        bind_first("left", "blind.left", "Left", action="vote('left')"),
        bind_first("right", "blind.right", "Right", action="vote('right')"),
        bind_first("equals_sign", "blind.tie", "Tie", action="vote('tie')"),
        bind_first("k", "blind.skip", "Skip", action="vote('skip')"),
        bind_first("ctrl+z", "blind.undo", "Undo"),
        bind("escape", "blind.back", "Back", action="dismiss"),
    ]

    def __init__(self, ballot: Ballot) -> None:
        super().__init__()
        self.ballot = ballot
        self.pair: BlindPair | None = None

    def contents(self) -> ComposeResult:
        with Horizontal(id="blind-progress"):
            yield ProgressBar(len(self.ballot.pairs), show_eta=False, show_percentage=False)
            yield Plain(id="blind-said")
        with VerticalScroll(classes="asked pane", can_focus=False):
            yield Plain(id="asked-text")
        with Horizontal(id="blind-pair"):
            for side in (Sided.LEFT, Sided.RIGHT):
                with VerticalScroll(classes="pane", id=f"blind-{side}") as box:
                    box.border_title = side.value.title()
                    yield Plain(classes="answer")
        with Horizontal(id="blind-bar"):
            for said, label in _BUTTONS.items():
                button = Button(label, compact=True, id=f"vote-{said}")
                # While one looks pressed it takes no click: two in a row are two votes.
                button.active_effect_duration = 0.0
                yield button
        with Pane("Which you preferred", id="blind-result"):
            yield Plain(id="blind-votes")

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        ballot = self.ballot
        self.pair = pair = ballot.next
        self.query_one(ProgressBar).update(progress=ballot.done)
        said = f"{ballot.done:,} of {len(ballot.pairs):,} judged"
        self.query_one("#blind-said", Static).update(said)
        self.set_class(pair is None, "-over")
        if pair is None:
            lines = [votes_line(votes, ballot.results) for votes in ballot.count()]
            self.query_one("#blind-votes", Static).update("\n".join(lines))
        else:
            row = ballot.results.rows[pair.row]
            self.query_one("#asked-text", Static).update(row.prompt)
            numbers = (pair.other, 0) if pair.swapped else (0, pair.other)
            for box, number in zip(self.query("#blind-pair > *"), numbers, strict=True):
                box.query_one(Static).update(row.answers[number].text)
                box.scroll_home(animate=False)
            self.query_one("#blind-left").focus()
        self.refresh_bindings()

    def can(self, action: str) -> bool:
        if action == "undo":
            return bool(self.ballot.votes)
        return self.pair is not None if action == "vote" else True

    def action_vote(self, said: str) -> None:
        """Keep it, and go on to the next pair."""
        if self.pair is not None:
            self._keep(self.ballot.say, self.pair, Sided(said))

    def action_undo(self) -> None:
        """Ask about the last pair once more."""
        self._keep(self.ballot.take_back)

    def _keep(self, change: Callable[..., object], *said: BlindPair | Sided) -> None:
        try:
            change(*said)
            self._show()
        except OSError as error:
            self.notify(f"Not kept: {error}", severity="error")

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.action_vote(str(event.button.id).removeprefix("vote-"))


_LOOKS = 1 / 4  # seconds between two looks at a job


class PromptsForm(Form):
    """The form: a file of prompts, and how long answers may be."""

    def compose(self) -> ComposeResult:
        yield Group(
            "A file of prompts",
            path_field("prompts", "Prompts", "questions.jsonl", "JSONL, text, CSV, a folder ..."),
            text_field("length", "Max tokens", "256", "How long an answer may be."),
            text_field("limit", "First rows", "all", "Only so many prompts."),
        )
        yield FieldHelp()

    async def look(self) -> None:
        """Do nothing: this form shows nothing while one types."""

    def number(self, name: str) -> int | None:
        """Read a field; None where it is empty, or wrong, which is marked."""
        text = self.text_of(name).strip().replace(",", "")
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text:
            self.refuse(name, "a whole number above 0")
        return None


class RowTable(Table[PromptResult]):
    """The prompts, with what each later file's answer is to the first one's."""

    def __init__(self) -> None:
        super().__init__([], lambda row: row.index, id="prompt-rows")

    def fill(self, results: Results) -> None:
        """Other rows."""
        self.columns = [TableColumn("row", lambda row: f"{row.index:,}", 6, right=True)]
        for number in range(1, len(results.files)):
            mark = partial(_mark, number=number)
            self.columns.append(TableColumn(f"file {number + 1}", mark, 12))
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
    CSS_PATH = [
        "compare.tcss",
        "../widgets/form.tcss",
    ]
    BINDINGS = [
        bind_first("ctrl+g", "prompts.start", "Start"),
        bind_first("ctrl+n", "prompts.new", "New"),
        bind_first("alt+v", "prompts.blind", "Vote blind"),
        bind_first("f9", "prompts.save", "Save"),
        bind("escape", "prompts.back", "Back"),
    ]

    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        super().__init__()
        self.entries = tuple(entries)
        self.process: PromptsProcess | None = None
        self._progress = Horizontal(id="prompts-progress")
        self._table = RowTable()
        self.job: PromptsJob | None = None
        self.results: Results | None = None

    def contents(self) -> ComposeResult:
        with VerticalScroll(id="prompts-top", can_focus=False):
            with Horizontal(id="prompts-files"):
                for number, label in enumerate(labels_of(self.entries)):
                    yield Plain(label, classes=f"-hue-{number % HUES + 1}")
            yield PromptsForm(id="prompts-form")
            with Horizontal(id="prompts-bar"):
                yield Button("Start", variant="primary", compact=True, id="start")
                yield Button("New", compact=True, id="new")
                yield Button("Vote blind", compact=True, id="blind")
                yield Button("Save", compact=True, id="save")
            with self._progress:
                yield ProgressBar(100, show_eta=False)
                yield Plain(id="prompts-said")
            with Pane("Figures", id="prompts-figures"):
                yield Plain(id="prompts-tables")
        with Pane("Prompts", id="prompts-list"):
            yield self._table

    def on_mount(self) -> None:
        self.query_one("#prompts").focus()
        self._offer()

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
        length, limit = form.number("length") or 256, form.number("limit")
        try:
            if not name:
                raise IngotError("name a file of prompts")
            path = check_prompts(at_home(name))
        except IngotError as error:
            form.refuse("prompts", str(error).removeprefix("--prompts: "))
        if form.errors:
            form.action_next_error()
            return
        self.job = PromptsJob(self.entries, path, SamplingOptions(max_tokens=length), limit=limit)
        try:
            self.process = PromptsProcess(self.job)
        except OSError as error:
            self.say(f"It cannot be started: {error}", "bad")
            return
        self.results = None
        self._offer()
        self._follow(self.process)

    @background
    async def _follow(self, process: PromptsProcess) -> None:
        progress, began = CompareProgress(), time.monotonic()
        while progress.running:
            self._show(progress)
            await asyncio.sleep(_LOOKS)
            progress = await asyncio.to_thread(process.poll)
        self._show(progress)
        self.process = None
        app_of(self).ended("the comparison is over", time.monotonic() - began)
        if progress.error:
            self.say(f"✗ {progress.error}", "bad")
        elif not progress.stopped:
            await self._read()
        self._offer()

    def _show(self, progress: CompareProgress) -> None:
        share = progress.done / progress.total if progress.total else 0.0
        self._progress.query_one(ProgressBar).update(progress=100 * share)
        if progress.stopped:
            self.say("Stopped; starting again goes on from here.", "wait")
            return
        total = progress.total
        answers = "reading" if total is None else f"{progress.done:,} of {total:,} answers"
        parts = [f"file {progress.file + 1} of {len(self.entries)}", answers]
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
        """Read and show the results of the command."""
        assert self.job is not None
        try:
            self.results = await asyncio.to_thread(read_report, self.job.folder)
        except (IngotError, OSError) as error:
            self.say(f"✗ {error}", "bad")
            return
        self.show_figures()
        self._table.fill(self.results)
        self._offer()
        self.call_after_refresh(self._table.focus)

    def show_figures(self) -> None:
        """The tables of the command, and votes."""
        if (results := self.results) is None:
            return
        colours = app_of(self).theme_variables
        hues = [colours[f"hue-{number}"] for number in range(1, HUES + 1)]
        plain = any(colour.startswith("ansi") for colour in hues)
        lines = [Text(votes_line(votes, results), "bold") for votes in results.votes]
        lines += [Text(note, "dim") for note in notes(results)]
        files, pairs = figures(results, () if plain else hues)
        self.query_one("#prompts-tables", Static).update(Lines(files, "", pairs, "", *lines))

    # Keys and buttons

    def _offer(self) -> None:
        self.refresh_bindings()
        self.update_classes({"-found": self.results is not None, "-begun": self.job is not None})
        self.query_one("#start", Button).disabled = self.process is not None

    def can(self, action: str) -> bool:
        found = self.results is not None
        if action == "start":
            return self.process is None and not found
        return found or action not in ("new", "blind", "save")

    @on(Button.Pressed)
    async def _pressed(self, event: Button.Pressed) -> None:
        await self.run_action(str(event.button.id))

    def interrupt(self) -> bool:
        if self.process is not None:
            self.process.stop()
        return self.process is not None

    def leaving(self) -> str | None:
        return "A comparison is not finished." if self.process else None

    def action_back(self) -> None:
        """Stop what runs; else leave."""
        if not self.interrupt():
            self.dismiss()

    def action_new(self) -> None:
        """Back to the form: other prompts, or longer answers."""
        self.job = self.results = None
        self._offer()
        self.call_after_refresh(self.query_one("#prompts").focus)

    @on(Table.Selected)
    def _open(self) -> None:
        row = self._table.record
        if row is not None and self.results is not None:
            self.app.push_screen(AnswersScreen(self.results, self.results.rows.index(row)))

    @background
    async def action_blind(self) -> None:
        """Vote, and count."""
        results = self.results
        if results is None or self.job is None:
            return
        ballot = await asyncio.to_thread(ballot_of, results, self.job.folder)
        if not ballot.pairs:
            self.notify("All answers are the same: there is nothing to prefer.")
            return
        await self.app.push_screen_wait(BlindScreen(ballot))
        self.results = replace(results, votes=ballot.count())
        self.show_figures()

    @background
    async def action_save(self) -> None:
        """Write the report that the command writes."""
        if self.results is not None:
            await save(self, partial(write_results, self.results))


def _mark(row: PromptResult, number: int) -> Text:
    """How a later file's answer is to the first one's."""
    same, at = row.same(number), row.parts[number - 1]
    if same is None:
        return Text("✗ failed")
    return Text("= same", "dim") if same else Text(f"≠ at {at:,}")


def _right(row: PromptResult) -> str:
    signs = {True: "✓", False: "✗", None: "·"}
    return "".join(signs[told.right] for told in row.answers)
