"""The form of a batch job: files, model, how answers are made; beside it, the rows, tokens, memory
and time that the job would have."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Grid, Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Button, Checkbox, Input, Static

from app.batch.watch.follow import TimeLike, time_like
from app.batch.watch.form import (
    FIELDS,
    FRESH,
    JobForm,
    beside,
    in_words,
    look,
    save,
    suggested_output,
)
from app.batch.watch.preview import Preview, preview
from app.batch.watch.process import BatchCommand, DryRunProcess
from app.batch.watch.records import absolute
from app.figures import duration
from app.here import at_home, here
from app.tui.app import app_of
from app.tui.keys import bind, quiet
from app.tui.screens.batch_panels import BatchFilesScreen, BatchPresetsScreen, short
from app.tui.screens.dialogs import AskScreen
from app.tui.screens.models import ModelsScreen
from app.tui.textual_patches import Plain, background, latest
from app.tui.widgets.form import Check, Field, FieldHelp, Form, Group, path_field, text_field
from runtimes.errors import IngotError, ParameterError

_PROBLEMS = 2
_GIB = 2**30


class Aside(VerticalScroll):
    """A panel beside the form: a sentence, or lines of a name and a value."""

    COMPONENT_CLASSES = {"aside--muted", "aside--bad", "aside--good"}

    def __init__(self, title: str, id: str, *, can_focus: bool) -> None:
        super().__init__(id=id, classes="pane", can_focus=can_focus)
        self._title = self.border_title = title

    def compose(self) -> ComposeResult:
        yield Static()

    def say(self, text: str) -> None:
        self._put(Text(text, self._style("muted")))

    def show(self, lines: Iterable[tuple[str, str, str]], about: str = "", *, wrap: bool) -> None:
        """Show lines of a name, a value, and its looks (muted, bad, good or empty)."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(justify="right", style=self._style("muted"), no_wrap=True)
        table.add_column(ratio=1, no_wrap=not wrap)
        for name, value, looks in lines:
            table.add_row(name, Text(value, self._style(looks) if looks else ""))
        self._put(table, about)

    def _put(self, shown: RenderableType, about: str = "") -> None:
        for one in self.query(Static):  # none is left when a look ends while the app does
            self.border_title = f"{self._title}{about}"
            one.update(shown)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"aside--{name}", partial=True)


def figures_of(found: dict[str, Any], like: TimeLike | None) -> list[tuple[str, str, str]]:
    """Lines of an ``Aside`` for the results of a dry run; ``like`` is an earlier job's time."""
    memory, seconds = found["memory"]["total"], found["most_seconds"]
    longest = found["longest_prompt"]
    lines = [("rows", f"{found['valid']:,}", "good")]
    if found["invalid"]:
        lines.append(("not valid", f"{found['invalid']:,}", "bad"))
    lines += [
        ("prompts", f"{found['prompt_tokens']:,} tokens", ""),
        ("answers", f"at most {found['most_answer_tokens']:,} tokens", ""),
        ("longest", f"{longest['tokens']:,} of {found['context']:,} tokens", ""),
        ("memory", f"{memory / _GIB:.2f} of {found['free_memory'] / _GIB:.1f} GiB free", ""),
        ("slots", f"{found['slots']:,}", ""),
    ]  # fmt: skip
    if seconds is not None:
        lines.append(("time", f"at most {duration(seconds)}", ""))
    elif like is not None:
        lines.append(("time", f"at most {duration(like.seconds)}", ""))
        lines.append(("", f"as fast as {like.output.name} was", "muted"))
    else:
        lines.append(("time", "not known before ingot plan", "muted"))
    for problem in found["problems"][:_PROBLEMS]:
        lines.append(("", f"{problem['where']}: {problem['message']}", "bad"))
    return lines


def rows_of(found: Preview) -> list[tuple[str, str, str]]:
    """The first rows of an input as lines of an ``Aside``."""
    rows = ((f"{row.index:,}", row) for row in found.rows)
    return [
        (at, f"✗ {row.error}", "bad") if row.error else (at, " ".join(row.prompt.split()), "")
        for at, row in rows
    ]


_PATHS = frozenset({"input", "output", "model", "template", "schema"})
# Two columns of groups.
_GROUPS = (
    {"Input": "input field template limit", "Model": "model system temperature top_p seed"},
    {"Answers": "output n choices schema", "Limits": "max_tokens slots row_timeout max_time fresh"},
)
_NEEDED = ("input", "output", "model")
_NO_INPUT = "JSONL, text with a prompt a line, CSV, Parquet, or a folder of texts: F8 shows files."


class BatchForm(Form):
    """The fields of a ``JobForm``, and a look at what it asks for. ``Checked`` when a job is to be
    started and nothing is wrong with it."""

    BINDING_GROUP_TITLE = "New job"
    BINDINGS = [
        bind("ctrl+g", "batch.start", "Start"),
        bind("f8", "batch.files", "Files"),
        bind("f7", "batch.like", "Presets"),
        quiet("f9", "batch.save", "Save"),
        bind("ctrl+t", "batch.model", "Model"),
    ]

    @dataclass
    class Checked(Message):
        """The form was looked at, with its files."""

        command: BatchCommand

    def __init__(self) -> None:
        super().__init__(id="new")
        self._suggested = ""
        self._rest = JobForm().rest
        self._counted = ""  # the command of which the counts are shown
        self._asked = False  # to be started: what is missing is wrong from then on

    def compose(self) -> ComposeResult:
        with Grid(id="form-body"):
            with Container(id="form-groups"):
                for groups in _GROUPS:
                    with Vertical(classes="form-column"):
                        for title, names in groups.items():
                            yield Group(title, *map(_field, names.split()))
            yield Aside("First rows", "form-rows", can_focus=True)
            yield Aside("This job", "form-counts", can_focus=False)
        yield Plain(id="said", classes="bad")
        yield Plain(id="form-rest")
        with Horizontal(id="form-bar"):
            yield FieldHelp()
            yield Button("Like an earlier job", compact=True, id="like")
            yield Button("Save", compact=True, id="save")
            yield Button("Start", variant="primary", compact=True, id="start")

    def on_mount(self) -> None:
        self.say("")
        self.query_one("#form-rest", Plain).say("")
        self.query_one("#form-rows", Aside).say(_NO_INPUT)
        self.query_one("#form-counts", Aside).say("Name an input and a model.")

    @property
    def form(self) -> JobForm:
        values = {name: self.text_of(name) for name in FIELDS}
        return JobForm(**values, fresh=self.query_one("#fresh", Check).value, rest=self._rest)

    def say(self, text: str) -> None:
        """Say what is wrong with no field in particular."""
        self.query_one("#said", Plain).say(f"✗ {in_words(text)}" if text else "")

    # What it reads

    @on(Input.Changed)
    @on(Checkbox.Changed)
    def _changed(self, event: Input.Changed | Checkbox.Changed) -> None:
        """Look again once the user pauses: errors may be mended."""
        self.say("")
        if isinstance(event, Input.Changed) and event.input.id == "input":
            output = self.query_one("#output", Input)
            if output.value == self._suggested:
                self._suggested = suggested_output(event.value)
                output.value = self._suggested
        self.look_later()

    async def look(self) -> None:
        """Show errors, the first rows, and then the counts of a dry run."""
        form, rows = self.form, self.query_one("#form-rows", Aside)
        errors = await asyncio.to_thread(look, form, here())
        missing = [name for name in _NEEDED if not getattr(form, name).strip()]
        self.refuse_all({n: text for n, text in errors.items() if self._asked or n not in missing})
        if not form.input.strip():
            rows.say(_NO_INPUT)
        elif "input" in errors:
            rows.say("They cannot be read.")
        else:
            try:
                found = await asyncio.to_thread(_read, form)
                more = "" if found.more else f" · {len(found.rows)} rows"
                rows.show(rows_of(found), f" · {found.format}{more}", wrap=False)
            except (IngotError, OSError) as error:
                rows.say(f"✗ {in_words(str(error))}")
        self._count(None if errors else BatchCommand(form.spec(), here()))

    @latest
    async def _count(self, command: BatchCommand | None) -> None:
        """Have a dry run count; none while something is wrong."""
        counts = self.query_one("#form-counts", Aside)
        if command is not None and command.text == self._counted:
            return
        self._counted = ""
        if command is None:
            counts.say("What is wrong or missing comes first.")
            return
        counts.say("counting rows and tokens ...")
        run = None
        try:
            run = await asyncio.to_thread(DryRunProcess, command)
            found = await asyncio.to_thread(run.found)
            like = await asyncio.to_thread(time_like, found)
            counts.show(figures_of(found, like), wrap=True)
            self._counted = command.text
        except (IngotError, OSError) as error:
            counts.say(f"✗ {in_words(str(error))}")
        finally:
            if run is not None:
                run.cancel()

    # What its keys do

    @on(Button.Pressed, "#start")
    @latest
    async def action_start(self) -> None:
        self._asked = True
        form = self.form
        errors = await asyncio.to_thread(look, form, here())
        self.refuse_all(errors)
        if errors:
            self.query_one(f"#{next(iter(errors))}").focus()
            return
        self.post_message(self.Checked(BatchCommand(form.spec(), here())))

    def put(self, form: JobForm) -> None:
        """Fill in all fields; an input that is there already stays, with its output, unless
        ``form`` is empty."""
        self._rest = form.rest
        kept = ("input", "output") if self.form.input.strip() and form != JobForm() else ()
        self.fill(**{name: getattr(form, name) for name in FIELDS if name not in kept})
        self.query_one("#fresh", Check).value = form.fresh
        told = f"and as that job had it: {rest}" if (rest := beside(form)) else ""
        self.query_one("#form-rest", Plain).say(told)
        self.look_later(0)

    @on(Button.Pressed, "#like")
    @background
    async def action_like(self) -> None:
        if form := await self.app.push_screen_wait(BatchPresetsScreen()):
            self.put(form)

    @on(Button.Pressed, "#save")
    @background
    async def action_save(self) -> None:
        """All but input and output, under a name."""
        name = await self.app.push_screen_wait(AskScreen("Save these settings as"))
        if name is None:
            return
        try:
            await asyncio.to_thread(save, name, self.form, here())
            self.notify(f"[batch.like ctrl+r] has {name} now.")
        except ParameterError as error:
            self.refuse(str(error.field), str(error))
            self.query_one(f"#{error.field}").focus()
        except IngotError as error:
            self.say(str(error))

    @background
    async def action_model(self) -> None:
        typed = self.form.model.strip()
        given = [*app_of(self).named, *([typed] if typed and Path(typed).exists() else [])]
        chosen = await self.app.push_screen_wait(ModelsScreen(given, typed or None))
        if chosen:
            self.fill(model=str(chosen[0].path))

    @background
    async def action_files(self) -> None:
        typed = at_home(self.form.input)
        folder = typed if typed.is_dir() else typed.parent
        if path := await self.app.push_screen_wait(BatchFilesScreen(absolute(folder))):
            self.fill(input=short(path))


def _field(name: str) -> Field:
    if name == "fresh":
        return Field("", Check(FRESH, value=False, id=name), "its rows are all computed again")
    known = FIELDS[name]
    make = path_field if name in _PATHS else text_field
    return make(name, known["label"], known["placeholder"], known["about"])


def _read(form: JobForm) -> Preview:
    # Of the form only what says how rows are read; the rest may still be empty.
    kept = {name: getattr(form, name) for name in ("input", "field", "template", "limit", "rest")}
    alone = JobForm(output=form.output or "out", model="-", **kept)
    return preview(BatchCommand(alone.spec(), here()).asked())
