"""What a job is to be: files, model, how answers are made; below, what the input looks like."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Button, Input, Static

from app.batch.watch.command import Command, command_of
from app.batch.watch.form import FIELDS, FormError, JobForm, check, suggested_output
from app.batch.watch.preview import Preview, preview
from app.batch.watch.process import DryRun
from app.tui.app import app_of
from app.tui.screens.batch_panels import BatchFilesScreen, short
from app.tui.screens.models import ModelsScreen
from app.tui.widgets.form import Check, Form, path_line, text_field
from runtimes.errors import IngotError

_PATHS = ("input", "output", "model", "template")
# The lines below these, each with the width of its first label.
_LINES = (
    (9, ("field", "system")),
    (10, ("max_tokens", "temperature", "slots", "limit")),
    (10, ("top_p", "seed", "n")),
    (9, ("choices", "schema")),
)
_FRESH = "Forget the output's old answers"
# Of each field: the option of the command, and its label.
_OPTIONS = {
    **{name: (f["option"] or name.replace("_", "-"), f["label"]) for name, f in FIELDS.items()},
    "fresh": ("fresh", _FRESH),
}
_NO_INPUT = "Choose an input: JSONL, text with a prompt a line, CSV, Parquet, or a folder of texts."


class BatchForm(Form):
    """The fields of a ``JobForm``, and a look at the rows of its input. ``Checked`` when a job is
    to be started and nothing is wrong with it."""

    BINDING_GROUP_TITLE = "New job"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "start", "Start", id="batch.start"),
        Binding("ctrl+l", "dry_run", "Dry run", id="batch.dry_run"),
        Binding("ctrl+t", "model", "Model", id="batch.model"),
        Binding("f8", "files", "Files", id="batch.files"),
    ]

    @dataclass
    class Checked(Message):
        """The form was looked at, with its files."""

        command: Command

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._suggested = ""

    def compose(self) -> ComposeResult:
        for name in _PATHS:
            yield path_line(FIELDS[name]["label"], FIELDS[name]["placeholder"], name, "")
        for _, names in _LINES:
            with Horizontal(classes="form-line"):
                for n in names:
                    yield text_field(n, FIELDS[n]["label"], FIELDS[n]["placeholder"])
        with Horizontal(classes="form-line"):
            yield Check(_FRESH, value=False, id="fresh")
            yield Button("Start", variant="primary", compact=True, id="start")
        yield Static(id="said", markup=False)
        with VerticalScroll(id="rows"):
            yield Static(_NO_INPUT, id="preview", markup=False)

    @property
    def form(self) -> JobForm:
        values = {name: self.text_of(name) for name in FIELDS}
        return JobForm(**values, fresh=self.query_one("#fresh", Check).value)

    def say(self, lines: Iterable[str], *, error: bool = False) -> None:
        """What is wrong, or what a dry run found; an error is marked by its sign."""
        said = self.query_one("#said", Static)
        said.set_class(error, "error")
        text = "\n".join(lines)
        said.update(f"✗ {text}" if error else text)

    def explain(self, error: Exception) -> None:
        """Say what is wrong, where the cursor then is."""
        text, named = str(error), []
        for name, (option, label) in _OPTIONS.items():
            text, times = re.subn(rf"--{option}(?![\w-])", f"“{label}”", text)
            named += [name] * bool(times)
        self.say(text.splitlines(), error=True)
        # A dry run is the command itself, which knows options only.
        wrong = error.field if isinstance(error, FormError) else next(iter(named), None)
        if wrong is not None:
            self.query_one(f"#{wrong}").focus()

    # What it reads

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        """What was wrong may be mended; look again once the user pauses."""
        if self.query_one("#said").has_class("error"):
            self.say([])
        if event.input.id == "input":
            output = self.query_one("#output", Input)
            if output.value == self._suggested:
                self._suggested = suggested_output(event.value)
                output.value = self._suggested
        if event.input.id in ("input", "field", "template", "limit"):
            self.look_later()

    async def look(self) -> None:
        form, text = self.form, _NO_INPUT
        if form.input.strip():
            try:
                text = "\n".join(preview_lines(await asyncio.to_thread(_read, form)))
            except (IngotError, OSError) as error:
                text = f"✗ {error}"
        self.query_one("#preview", Static).update(text)

    # What its keys do

    @on(Button.Pressed)
    @work(exit_on_error=False, exclusive=True, group="start")
    async def action_start(self) -> None:
        self.say(["looking at the files ..."])
        try:
            self.post_message(self.Checked(await asyncio.to_thread(check, self.form, Path.cwd())))
        except (IngotError, OSError) as error:
            self.explain(error)

    @work(exit_on_error=False, exclusive=True, group="dry-run")
    async def action_dry_run(self) -> None:
        self.say(["counting rows and tokens ..."])
        run = None
        try:
            run = DryRun(await asyncio.to_thread(check, self.form, Path.cwd()))
            self.say(await asyncio.to_thread(run.lines))
        except (IngotError, OSError) as error:
            self.explain(error)
        finally:
            if run is not None:
                run.cancel()

    @work(exit_on_error=False, group="dialog")
    async def action_model(self) -> None:
        typed = self.form.model.strip()
        given = [*app_of(self).named, *([typed] if typed and Path(typed).exists() else [])]
        chosen = await self.app.push_screen_wait(ModelsScreen(given, typed or None))
        if chosen:
            self.fill(model=str(chosen[0].path))

    @work(exit_on_error=False, group="dialog")
    async def action_files(self) -> None:
        typed = Path(self.form.input).expanduser()
        folder = typed if typed.is_dir() else typed.parent
        path = await self.app.push_screen_wait(BatchFilesScreen(folder.absolute()))
        if path is not None:
            self.fill(input=short(path))


def _read(form: JobForm) -> Preview:
    # Of the form only what says how rows are read; the rest may still be empty.
    alone = JobForm(form.input, form.output or "out", "-", form.field, form.template, form.system)
    asked = command_of(alone.spec(), Path.cwd()).asked()
    assert asked is not None
    return preview(asked)


def preview_lines(found: Preview) -> list[str]:
    """The first rows, a line each."""
    more = ", the first rows" if found.more else f", {len(found.rows)} rows"
    lines = [f"{found.format}{more}:"]
    for row in found.rows:
        prompt = " ".join(row.prompt.split())
        told = f"✗ {row.error}" if row.error else (prompt[:197] + "..." * (len(prompt) > 197))
        lines.append(f"{row.index:>4}  {told}")
    return lines
