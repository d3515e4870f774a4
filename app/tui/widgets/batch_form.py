"""What a job is to be: files, model, how answers are made; below, what the input looks like."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Input, Label, Static

from app.batch.watch.command import command_of
from app.batch.watch.form import FIELDS, FormError, JobForm, suggested_output
from app.batch.watch.preview import Preview, preview
from app.tui.widgets.form_fields import Check, Field, Form
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
    """The fields of a ``JobForm``, and a look at the rows of its input."""

    BINDING_GROUP_TITLE = "New job"
    DEFAULT_CSS = """
    BatchForm {
        & Input { background: $panel; }
        & > .line { height: 1; }
        & > .line > Label { color: $text-muted; margin-right: 1; }
        & > .line > Input { width: 1fr; min-width: 6; margin-right: 1; }
        & > .line > Check { margin-left: 1; }
        & > .line > Button { dock: right; min-width: 10; }
        & > #said { height: auto; max-height: 5; }
        & > #said.error { color: $error; text-style: bold; }
        & > #rows { height: 1fr; }
    }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._suggested = ""

    def compose(self) -> ComposeResult:
        for name in _PATHS:
            yield Field(FIELDS[name]["label"], FIELDS[name]["placeholder"], name, "")
        for wide, names in _LINES:
            with Horizontal(classes="line"):
                for at, name in enumerate(names):
                    label = FIELDS[name]["label"]
                    yield Label(label if at else label.ljust(wide))
                    yield Input(placeholder=FIELDS[name]["placeholder"], id=name, compact=True)
        with Horizontal(classes="line"):
            yield Check(_FRESH, value=False, id="fresh")
            yield Button("Start", variant="primary", compact=True, action="screen.start")
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

    def refuse(self, error: Exception) -> None:
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
        form = self.form
        shown = self.query_one("#preview", Static)
        if not form.input.strip():
            shown.update(_NO_INPUT)
            return
        try:
            found = await asyncio.to_thread(_read, form)
        except (IngotError, OSError) as error:
            shown.update(f"✗ {error}")
            return
        shown.update("\n".join(preview_lines(found)))


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
