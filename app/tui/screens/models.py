"""The picker: which model file to load, with what is known of each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from app.models import library
from app.models.catalog import catalog
from app.models.entries import Entry, Fit, Origin, details, fit, size_of
from app.tui.screens.dialogs import ConfirmScreen
from app.tui.screens.pull import PullScreen
from app.tui.widgets.model_table import ModelTable
from runtimes.errors import IngotError

_MOVES = {"up": "cursor_up", "down": "cursor_down", "pageup": "page_up", "pagedown": "page_down"}


class ModelsScreen(ModalScreen[tuple[Entry, ...]]):
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
        Binding("ctrl+g", "get", "Get from the hub", id="models.get", priority=True),
        Binding("ctrl+s", "sort", "Sort", id="models.sort", priority=True),
        Binding("ctrl+d", "remove", "Remove", id="models.remove", priority=True),
        *(
            Binding(key, f"move('{key}')", show=False, id=f"models.{key}", priority=True)
            for key in _MOVES
        ),
    ]

    def __init__(
        self,
        given: Sequence[str] = (),
        current: str | None = None,
        *,
        several: bool = False,
        ticked: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._given = tuple(given)
        self._current = current
        self._several = several
        self._ticked = ticked
        self._after: str | None = None  # the key to go to once it is listed

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Input(
                placeholder="Filter: name, recipe, 4-bit, onnx ...", id="filter", compact=True
            )
            yield ModelTable(id="table")
            with VerticalScroll(id="about", can_focus=False):
                yield Static(id="details", markup=False)
            yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        table = self.query_one(ModelTable)
        table.marked = list(self._ticked)
        self.query_one("#box").border_title = "Compare: which files" if self._several else "Models"
        self.query_one("#filter").focus()
        self._tell(f"order: {table.order}")
        self._read()

    @work(thread=True, exclusive=True, exit_on_error=False, group="catalog")
    def _read(self) -> None:
        """What there is, at once; then what each needs, which means opening it."""
        entries = catalog(self._given)
        self.call_later(self._list, entries)
        for entry in entries:
            if entry.broken:
                continue
            try:
                self.call_later(self._found, entry, fit(entry))
            except IngotError as error:
                self.call_later(self._found, replace(entry, broken=str(error)), None)

    def _list(self, entries: list[Entry]) -> None:
        if not self.is_attached:
            return
        table = self.query_one(ModelTable)
        if self._current is not None:
            loaded = Path(self._current).resolve()
            same = (entry.key for entry in entries if entry.path.resolve() == loaded)
            table.current = next(same, None)
        table.set_entries(entries)
        if (key := self._after or table.current) is not None:
            table.go_to(key)
        self._after = None
        if not entries:
            self.query_one("#details", Static).update(
                "No model is here yet. ctrl+g gets one from the hub; `quantize` builds one."
            )

    def _found(self, entry: Entry, found: Fit | None) -> None:
        if self.is_attached:
            self.query_one(ModelTable).note(entry, found)

    @on(ModelTable.Shown)
    def _show(self, event: ModelTable.Shown) -> None:
        if not self.is_attached:
            return
        table = self.query_one(ModelTable)
        lines = details(event.entry, table.fit_of(event.entry)) if event.entry else []
        if event.entry is None and self.query_one(Input).value:
            lines = ["Nothing matches the filter."]
        if lines:
            self.query_one("#details", Static).update("\n".join(lines))
        self.refresh_bindings()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.query_one(ModelTable).set_filter(event.value)

    @on(DataTable.RowSelected)
    def _clicked(self) -> None:
        if self._several:
            self.action_tick()
        else:
            self.action_choose()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "tick":
            return self._several
        if action == "remove":
            return not self._several
        return True

    def action_move(self, key: str) -> None:
        """The filter keeps the cursor; these keys move through the table."""
        table = self.query_one(ModelTable)
        getattr(table, f"action_{_MOVES[key]}")()

    def action_tick(self) -> None:
        table = self.query_one(ModelTable)
        entry = table.highlighted
        if entry is None or self._refused(entry):
            return
        table.toggle(entry.key)
        self._tell(f"{len(table.marked)} ticked")

    def action_choose(self) -> None:
        table = self.query_one(ModelTable)
        chosen = table.entries(table.marked)
        if not chosen and table.highlighted is not None:
            chosen = (table.highlighted,)
        if chosen and not any(self._refused(entry) for entry in chosen):
            self.dismiss(chosen)

    def _refused(self, entry: Entry) -> bool:
        """Whether a file cannot be loaded at all; a lack of memory is for the loader to say."""
        if entry.broken:
            self.notify(entry.broken, title=entry.label, severity="error", markup=False)
        return entry.broken is not None

    def action_sort(self) -> None:
        table = self.query_one(ModelTable)
        table.next_order()
        self._tell(f"order: {table.order}")

    def _tell(self, text: str) -> None:
        self.query_one("#box").border_subtitle = text

    def action_leave(self) -> None:
        """First empty the filter, then go."""
        box = self.query_one(Input)
        if box.value:
            box.value = ""
        else:
            self.dismiss(())

    @work(exit_on_error=False, group="dialog")
    async def action_get(self) -> None:
        if (name := await self.app.push_screen_wait(PullScreen())) is not None:
            self._after = f"{name}\0"
            self._read()

    @work(exit_on_error=False, group="dialog")
    async def action_remove(self) -> None:
        entry = self.query_one(ModelTable).highlighted
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
        if await self.app.push_screen_wait(ConfirmScreen(question, "Delete")):
            self._remove(entry)

    @work(thread=True, exit_on_error=False, group="remove")
    def _remove(self, entry: Entry) -> None:
        try:
            found = library.find(entry.model)
            if found is not None:
                library.remove(*found)
            said = f"{entry.model} is deleted; {size_of(entry)} are free"
            self.call_later(self.notify, said, markup=False)
        except (IngotError, OSError) as error:
            self.call_later(self.notify, str(error), severity="error", markup=False)
        self.call_later(self._read)
