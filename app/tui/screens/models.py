"""The picker: which model file to load, what is known of each, and how it is to be loaded."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Input, Static
from textual.worker import WorkerError

from app.chat import load_settings
from app.chat.load_settings import LoadSettings
from app.here import real
from app.models import library
from app.models.catalog import (
    Fit,
    ModelEntry,
    Origin,
    catalog,
    details,
    fit,
    quality_of,
    quality_order,
    size_of,
    speed_of,
    state_of,
    type_of,
    with_bits,
)
from app.models.planning import LoadChoice, cache_losses, choose
from app.options import PlanOptions
from app.tui.keys import bind
from app.tui.screens.dialogs import ConfirmScreen, ListPanel, Panel, bind_first, list_keys
from app.tui.screens.find import FindScreen
from app.tui.textual_patches import Plain, background, latest
from app.tui.widgets.form import Field, FieldHelp, Form
from app.tui.widgets.prompt import Line, SearchLine
from app.tui.widgets.table import Table, TableColumn
from quantize.disk import human
from runtimes.errors import IngotError
from runtimes.machine.cpu import available_cores
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import DEFAULT_CONTEXT, checkpoint_words
from runtimes.settings import KV_HELP

# The figures' best first, unknown last; the catalog's order decides ties.
_KEYS: dict[str, Callable[[ModelEntry], Any]] = {
    "name": lambda entry: 0,
    "size": lambda entry: float("inf") if entry.bytes is None else entry.bytes,
    "speed": lambda entry: -(entry.decode_tps or 0.0),
    "quality": quality_order,
}
ORDERS = tuple(_KEYS)


class ModelTable(Table[ModelEntry]):
    """Rows are keyed by ``ModelEntry.key``. ``marked`` entries carry a tick, the ``current`` one a
    dot; what cannot be used says so in the last column."""

    def __init__(self) -> None:
        super().__init__(
            (
                TableColumn("Model", self._label),
                TableColumn("Type", type_of, 13),
                TableColumn("Size", size_of, 7, right=True),
                TableColumn("tok/s", speed_of, 7, right=True),
                TableColumn("Quality", quality_of, 9, right=True),
                TableColumn("Memory", lambda entry: state_of(entry, self.fit_of(entry)), 7),
            ),
            key=lambda entry: entry.key,
            id="table",
        )
        self.order = ORDERS[0]
        self.marked: list[str] = []
        self.current: str | None = None
        self._entries: dict[str, ModelEntry] = {}
        self._fits: dict[str, Fit] = {}
        self._words: tuple[str, ...] = ()

    def set_entries(self, entries: Iterable[ModelEntry]) -> None:
        self._entries = {entry.key: entry for entry in entries}
        self._again()

    def note(self, entry: ModelEntry, fit: Fit | None) -> None:
        """Note what was found out about a file: its memory, or that it is broken."""
        self._entries[entry.key] = entry
        if fit is not None:
            self._fits[entry.key] = fit
        self._again()

    def set_filter(self, text: str) -> None:
        """Show only entries that match every word of ``text``."""
        self._words = tuple(text.split())
        self._again()

    def next_order(self) -> None:
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._again()

    def toggle(self, key: str) -> None:
        """Tick an entry, or take its tick away."""
        ticked = key in self.marked
        (self.marked.remove if ticked else self.marked.append)(key)
        self._again()

    @property
    def chosen(self) -> tuple[ModelEntry, ...]:
        """The marked entries that still exist, else the one under the cursor."""
        marked = tuple(self._entries[key] for key in self.marked if key in self._entries)
        return marked or (() if self.record is None else (self.record,))

    def fit_of(self, entry: ModelEntry) -> Fit | None:
        return self._fits.get(entry.key)

    def _again(self) -> None:
        found = [entry for entry in self._entries.values() if entry.matches(self._words)]
        self.show(sorted(found, key=_KEYS[self.order]))

    def _label(self, entry: ModelEntry) -> Text:
        """With its middle left out where it is too long: the recipe tells files apart."""
        sign = "✓ " if entry.key in self.marked else "● " if entry.key == self.current else ""
        room, label = self.room - len(sign), entry.label
        if len(label) > room:
            end = f" · {entry.recipe}" if entry.recipe else entry.name[-6:]
            label = f"{entry.name[: max(room - len(end) - 1, 1)]}…{end}"[:room]
        return Text(sign + label, style="bold" if sign else "")


_LABELS = {
    "context": ("Context", "tokens of a prompt and its answer at most; more take more memory"),
    "threads": ("Threads", "of the processor"),
    "device": ("Device", "cpu, or one that `ingot doctor` lists; several with commas between"),
    "gpu_layers": ("GPU layers", "on the GPU; -1 is all of them, 0 none"),
    "kv_type": ("KV cache", f"{KV_HELP}; smaller types take less memory, and lose a little"),
    "template": ("Template", "a file of Jinja2, or chatml, llama3, gemma, instead of the model's"),
}


class LoadForm(Form):
    """The settings that the runtime of a file has. Empty is as planned."""

    def __init__(self, choice: LoadChoice, said: LoadSettings, lost: str) -> None:
        """``lost`` tells what types of the KV cache lose, where that was measured."""
        super().__init__()
        self._choice, self._said, self._lost = choice, said, lost

    def compose(self) -> ComposeResult:
        for name in load_settings.known_to(self._choice.file):
            label, about = _LABELS[name]
            value = getattr(self._said, name)
            text = "" if value is None else str(value)
            yield Field(label, Line(text, placeholder=self._planned(name), id=name), about)
        yield FieldHelp()
        yield Plain(id="load-memory")

    def on_mount(self) -> None:
        self.query(Input).first().focus()
        self.look_later(0.01)

    def _planned(self, name: str) -> str:
        settings, file = self._choice.settings, self._choice.file
        if name == "template":
            return "the model's own" if file.chat_template else "none: it continues text"
        values: dict[str, object] = {
            "context": settings.context or min(DEFAULT_CONTEXT, file.context_length),
            "threads": settings.threads or available_cores(),
            "gpu_layers": "all" if settings.gpu_layers < 0 else settings.gpu_layers,
            "device": settings.device,
            "kv_type": settings.kv_type,
        }
        return f"{values[name]}, as {'planned' if self._choice.planned else 'usual'}"

    def read(self) -> LoadSettings | None:
        """Read the form; None, and the errors under their fields, where something is wrong."""
        texts = {str(line.id): line.value for line in self.query(Input)}
        said, errors = load_settings.read(texts, self._choice.file)
        self.refuse_all(errors)
        return None if errors else said

    @on(Input.Changed)
    def _typed(self) -> None:
        self.look_later()

    async def look(self) -> None:
        """Show the memory that the settings take."""
        said, text, free = self.read(), "", memory_now()[1]
        shown = self.query_one("#load-memory", Static)
        try:
            if said is not None:
                needs = load_settings.memory(self._choice, said)
                fits = "fits" if needs.total <= free else "does not fit"
                text = f"Memory: needs {human(needs.total)}, {human(free)} are free: {fits}"
                if more := checkpoint_words(needs, free):
                    text += f"; {more}"
                text = "\n".join(filter(None, (text, self._lost)))
                shown.set_class(needs.total > free, "bad")
        except IngotError as error:
            text = str(error)
        shown.update(text)


class LoadScreen(Panel[bool]):
    """Ends with True once the settings are remembered, and the file is to be loaded."""

    HELP = """
    How this file is loaded, from now on: an empty line is as `ingot plan` has chosen, or the usual.
    What the command line gives comes before it.
    """
    CSS_PATH = ["../widgets/form.tcss", "models.tcss"]
    BINDINGS = [
        bind_first("ctrl+s", "load.use", "Load"),
        bind_first("alt+r", "load.reset", "As planned"),
    ]

    def __init__(self, entry: ModelEntry) -> None:
        super().__init__(f"Load {entry.label}")
        self._entry = entry

    def contents(self) -> ComposeResult:
        yield Plain("reading the file", id="load-state")
        with Horizontal(id="load-buttons"):
            yield Button("As planned", id="load-reset", action="screen.reset", compact=True)
            yield Button(
                "Load", variant="primary", id="load-use", action="screen.use", compact=True
            )

    @background
    async def on_mount(self) -> None:
        entry, state = self._entry, self.query_one("#load-state", Static)
        try:
            choice = await asyncio.to_thread(
                choose, entry.model, entry.options, PlanOptions(), "chat", slots=1
            )
            self._path = choice.file.path
            said = await asyncio.to_thread(load_settings.remembered, self._path)
            lost = await asyncio.to_thread(cache_losses, self._path)
            form = LoadForm(choice, said, lost)
        except IngotError as error:
            state.update(str(error))
            return
        state.display = False
        await self.query_one(".box").mount(form, before="#load-buttons")

    def action_use(self) -> None:
        for form in self.query(LoadForm):
            if said := form.read():
                load_settings.remember(self._path, said)
                self.dismiss(True)
            else:
                form.action_next_error()

    def action_reset(self) -> None:
        for line in self.query(Input):
            line.value = ""


log = logging.getLogger(__name__)


class ModelsScreen(ListPanel[tuple[ModelEntry, ...]]):
    """Ends with the chosen entries, None when it was left.

    ``given`` are files and folders to list beside what is known anyway, ``current`` is the path
    of the loaded one. With ``several``, ctrl+x ticks files, and all ticked ones are the choice;
    ``ticked`` are keys of those that are ticked to begin with.
    """

    CSS_PATH = "models.tcss"
    LIST = "#table"
    BINDINGS = [
        bind("escape", "models.leave", "Back"),
        bind_first("enter", "models.choose", "Choose"),
        bind_first("ctrl+x,insert", "models.tick", "Tick"),
        bind_first("alt+m", "models.get", "Find models"),
        bind_first("ctrl+s", "models.settings", "Settings"),
        bind_first("alt+s", "models.sort", "Sort"),
        bind("delete,ctrl+d", "models.remove", "Delete"),
        *list_keys("models", priority=True),
    ]

    def __init__(
        self,
        given: Sequence[str] = (),
        current: str | None = None,
        *,
        several: bool = False,
        ticked: Sequence[str] = (),
    ) -> None:
        super().__init__("Compare: which files" if several else "Models")
        self._table = ModelTable()
        self._table.marked = list(ticked)
        self._given, self._current, self._several = tuple(given), current, several
        self._none = False  # nothing is there to choose
        self._after: str | None = None  # the key to go to once it is listed

    def contents(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield SearchLine(placeholder="Filter: name, recipe, 4-bit, onnx ...", id="filter")
            if not self._several:
                yield Button("Load settings", id="load", action="screen.settings", compact=True)
            yield Button("Find models", id="find", action="screen.get", compact=True)
        yield self._table
        with VerticalScroll(id="about", can_focus=False):
            yield Plain(id="details")

    def on_mount(self) -> None:
        self.query_one("#filter").focus()
        self._tell(f"order: {self._table.order}")
        self._read()

    @latest
    async def _read(self) -> None:
        """List the entries at once; then note what each needs, which means opening it."""
        entries = await asyncio.to_thread(catalog, self._given)
        table, self._none = self._table, not entries
        if self._current is not None:
            loaded = real(Path(self._current))
            same = (entry.key for entry in entries if real(entry.path) == loaded)
            table.current = next(same, None)
        table.set_entries(entries)
        if (key := self._after or table.current) is not None:
            table.go_to(key)
        self._after = None
        for entry in entries:
            if not entry.broken:
                try:
                    found = await asyncio.to_thread(fit, entry)
                    table.note(await asyncio.to_thread(with_bits, entry), found)
                except Exception as error:  # whatever one file does, the next are read too
                    log.debug("reading %s", entry.path, exc_info=True)
                    said = str(error) if isinstance(error, IngotError) else repr(error)
                    table.note(replace(entry, broken=said), None)

    @on(ModelTable.Highlighted)
    def _show(self) -> None:
        if not self.is_attached:
            return
        entry, told = self._table.record, ""
        if entry is not None:
            told = "\n".join(details(entry, self._table.fit_of(entry)))
        elif self._none:
            told = "No model is here yet. Enter finds one on the hub; `quantize` builds one."
        elif self.query_one(Input).value:
            told = "Nothing matches the filter."
        self.query_one("#details", Static).update(told)
        self.refresh_bindings()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self._table.set_filter(event.value)

    @on(ModelTable.Selected)
    def _clicked(self) -> None:
        if self._several:
            self.action_tick()
        else:
            self.action_choose()

    def can(self, action: str) -> bool:
        return action not in (("remove", "settings") if self._several else ("tick",))

    def action_tick(self) -> None:
        table, entry = self._table, self._table.record
        if entry is not None and not self._refused(entry):
            table.toggle(entry.key)
            self._tell(f"{len(table.marked)} ticked")

    def action_choose(self) -> None:
        if self._none:
            self.action_get()
            return
        chosen = self._table.chosen
        if chosen and not any(self._refused(entry) for entry in chosen):
            self.dismiss(chosen)

    def _refused(self, entry: ModelEntry) -> bool:
        """Whether a file cannot be loaded at all; a lack of memory is for the loader to say."""
        if entry.broken:
            self.notify(entry.broken, title=entry.label, severity="error")
        return entry.broken is not None

    @background
    async def action_settings(self) -> None:
        """Say how the file under the cursor is to be loaded, and load it so."""
        entry = self._table.record
        if entry is None or self._refused(entry):
            return
        if await self.app.push_screen_wait(LoadScreen(entry)):
            self.dismiss((entry,))

    def action_sort(self) -> None:
        self._table.next_order()
        self._tell(f"order: {self._table.order}")

    def _tell(self, text: str) -> None:
        self.query_one(".box").border_subtitle = text

    def action_leave(self) -> None:
        """First empty the filter, then go."""
        box = self.query_one(Input)
        if box.value:
            box.value = ""
        else:
            self.dismiss(None)

    @background
    async def action_get(self) -> None:
        use = "Tick it" if self._several else "Use it"
        name = await self.app.push_screen_wait(FindScreen(use=use))
        self._after = f"{name}\0" if name else None
        with suppress(WorkerError):  # it is read once more
            await self._read().wait()
        if name and self._table.go_to(f"{name}\0"):
            self._clicked()

    @background
    async def action_remove(self) -> None:
        entry = self._table.record
        if entry is None:
            return
        if entry.origin is not Origin.LIBRARY:
            why = f"Only pulled models are removed here. This one is yours: {entry.path}"
            self.notify(why, severity="warning")
        elif entry.key == self._table.current:
            self.notify("It is loaded. Load another one first.", severity="warning")
        elif await self.app.push_screen_wait(
            ConfirmScreen(
                f"Delete {entry.model}, {size_of(entry)}? `ingot pull` can get it again.", "Delete"
            )
        ):
            try:
                if found := await asyncio.to_thread(library.find, entry.model):
                    await asyncio.to_thread(library.remove, *found)
                self.notify(f"{entry.model} is deleted; {size_of(entry)} are free")
            except (IngotError, OSError) as error:
                self.tell_error(error)
            self._read()
