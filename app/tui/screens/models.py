"""The picker: which model file to load, with what is known of each."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Button, Input, Static
from textual.worker import WorkerError

from app.here import real
from app.models import library
from app.models.catalog import ModelEntry, Origin, catalog, details, fit, size_of, with_bits
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.screens.find import FindScreen
from app.tui.screens.load_settings import LoadScreen
from app.tui.widgets.model_table import ModelTable
from app.tui.widgets.prompt import SearchLine
from runtimes.errors import IngotError

log = logging.getLogger(__name__)

_MOVES = {"up": "move(-1)", "down": "move(1)", "pageup": "page(-1)", "pagedown": "page(1)"}


class ModelsScreen(Panel[tuple[ModelEntry, ...]]):
    """Ends with the chosen entries, none when it was left.

    ``given`` are files and folders to list beside what is known anyway, ``current`` is the path
    of the loaded one. With ``several``, ctrl+x ticks files, and all ticked ones are the choice;
    ``ticked`` are keys of those that are ticked to begin with.
    """

    CSS_PATH = "models.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="models.leave"),
        Binding("enter", "choose", "Choose", id="models.choose", priority=True),
        Binding("ctrl+x,insert", "tick", "Tick", id="models.tick", priority=True),
        Binding("alt+m", "get", "Find models", id="models.get", priority=True),
        Binding("ctrl+s", "settings", "Settings", id="models.settings", priority=True),
        Binding("alt+s", "sort", "Sort", id="models.sort", priority=True),
        Binding("delete,ctrl+d", "remove", "Delete", id="models.remove"),
        *(
            Binding(key, action, show=False, id=f"models.{key}", priority=True)
            for key, action in _MOVES.items()
        ),
        # Of the line above the table while there is something in it.
        Binding("home,ctrl+home", "end(-1)", show=False, id="models.home"),
        Binding("end,ctrl+end", "end(1)", show=False, id="models.end"),
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
        self._given = tuple(given)
        self._current = current
        self._several = several
        self._ticked = ticked
        self._none = False  # nothing is there to choose
        self._after: str | None = None  # the key to go to once it is listed

    def contents(self) -> ComposeResult:
        hint = "Filter: name, recipe, 4-bit, onnx ..."
        with Horizontal(id="top"):
            yield SearchLine(placeholder=hint, id="filter")
            if not self._several:
                yield Button("Load settings", id="load", action="screen.settings", compact=True)
            yield Button("Find models", id="find", action="screen.get", compact=True)
        yield ModelTable(id="table")
        with VerticalScroll(id="about", can_focus=False):
            yield Static(id="details", markup=False)

    def on_mount(self) -> None:
        table = self.query_one(ModelTable)
        table.marked = list(self._ticked)
        self.query_one("#filter").focus()
        self._tell(f"order: {table.order}")
        self._read()

    @work(exclusive=True, exit_on_error=False, group="catalog")
    async def _read(self) -> None:
        """What there is, at once; then what each needs, which means opening it."""
        entries = await asyncio.to_thread(catalog, self._given)
        table = self.query_one(ModelTable)
        if self._current is not None:
            loaded = real(Path(self._current))
            same = (entry.key for entry in entries if real(entry.path) == loaded)
            table.current = next(same, None)
        table.set_entries(entries)
        if (key := self._after or table.current) is not None:
            table.go_to(key)
        self._after = None
        self._none = not entries
        if self._none:
            self.query_one("#details", Static).update(
                "No model is here yet. Enter finds one on the hub; `quantize` builds one."
            )
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
        table = self.query_one(ModelTable)
        entry, lines = table.record, []
        if entry is not None:
            lines = details(entry, table.fit_of(entry))
        elif self.query_one(Input).value:
            lines = ["Nothing matches the filter."]
        if lines:
            self.query_one("#details", Static).update("\n".join(lines))
        self.refresh_bindings()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.query_one(ModelTable).set_filter(event.value)

    @on(ModelTable.Selected)
    def _clicked(self) -> None:
        if self._several:
            self.action_tick()
        else:
            self.action_choose()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        one = not self._several
        return {"tick": self._several, "remove": one, "settings": one}.get(action, True)

    def action_move(self, step: int) -> None:
        """The filter keeps the cursor; these keys move through the table."""
        self.query_one(ModelTable).action_move(step)

    def action_page(self, step: int) -> None:
        self.query_one(ModelTable).action_page(step)

    def action_end(self, side: int) -> None:
        self.query_one(ModelTable).action_end(side)

    def action_tick(self) -> None:
        table = self.query_one(ModelTable)
        entry = table.record
        if entry is None or self._refused(entry):
            return
        table.toggle(entry.key)
        self._tell(f"{len(table.marked)} ticked")

    def action_choose(self) -> None:
        if self._none:
            self.action_get()
            return
        table = self.query_one(ModelTable)
        chosen = table.entries(table.marked)
        if not chosen and table.record is not None:
            chosen = (table.record,)
        if chosen and not any(self._refused(entry) for entry in chosen):
            self.dismiss(chosen)

    def _refused(self, entry: ModelEntry) -> bool:
        """Whether a file cannot be loaded at all; a lack of memory is for the loader to say."""
        if entry.broken:
            self.notify(entry.broken, title=entry.label, severity="error", markup=False)
        return entry.broken is not None

    def action_settings(self) -> None:
        """Say how the file under the cursor is to be loaded, and load it so."""
        entry = self.query_one(ModelTable).record
        if entry is None or self._refused(entry):
            return

        def said(load: bool | None) -> None:
            if load:
                self.dismiss((entry,))

        self.app.push_screen(LoadScreen(entry), said)

    def action_sort(self) -> None:
        table = self.query_one(ModelTable)
        table.next_order()
        self._tell(f"order: {table.order}")

    def _tell(self, text: str) -> None:
        self.query_one(".box").border_subtitle = text

    def action_leave(self) -> None:
        """First empty the filter, then go."""
        box = self.query_one(Input)
        if box.value:
            box.value = ""
        else:
            self.dismiss(())

    @work(exit_on_error=False, group="dialog")
    async def action_get(self) -> None:
        use = "Tick it" if self._several else "Use it"
        name = await self.app.push_screen_wait(FindScreen(use=use))
        self._after = f"{name}\0" if name else None
        with suppress(WorkerError):  # it is read once more
            await self._read().wait()
        if name and self.query_one(ModelTable).go_to(f"{name}\0"):
            self._clicked()

    @work(exit_on_error=False, group="dialog")
    async def action_remove(self) -> None:
        entry = self.query_one(ModelTable).record
        if entry is None:
            return
        if entry.origin is not Origin.LIBRARY:
            why = f"Only pulled models are removed here. This one is yours: {entry.path}"
            self.notify(why, severity="warning", markup=False)
            return
        if entry.key == self.query_one(ModelTable).current:
            self.notify("It is loaded. Load another one first.", severity="warning")
            return
        question = f"Delete {entry.model}, {size_of(entry)}? `ingot pull` can get it again."
        if not await self.app.push_screen_wait(ConfirmScreen(question, "Delete")):
            return
        try:
            await asyncio.to_thread(_remove, entry.model)
            self.notify(f"{entry.model} is deleted; {size_of(entry)} are free", markup=False)
        except (IngotError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
        self._read()


def _remove(model: str) -> None:
    if (found := library.find(model)) is not None:
        library.remove(*found)
