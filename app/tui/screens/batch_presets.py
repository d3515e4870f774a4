"""A form to begin with: empty, saved under a name, or that of an earlier job."""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from app.batch.watch.form import JobForm
from app.batch.watch.presets import JobPreset, forget, presets, summary
from app.here import here
from app.tui.keys import told
from app.tui.screens.batch_jobs import ago, end_of
from app.tui.screens.dialogs import Panel
from app.tui.widgets.table import Table, TableColumn
from runtimes.errors import IngotError

_NAME, _MODEL = 20, 18


class PresetTable(Table[JobPreset]):
    """Saved ones have a star."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"preset-table--saved", "preset-table--quiet"}

    def __init__(self, clock: Callable[[], float]) -> None:
        columns: tuple[TableColumn[JobPreset], ...] = (
            TableColumn("", lambda p: self._styled("★" if _saved(p) else " ", "saved"), 1),
            TableColumn("like", lambda p: end_of(p.name, _NAME), _NAME),
            TableColumn("model", lambda p: self._styled(end_of(p.form.model, _MODEL)), _MODEL),
            TableColumn(
                "when", lambda p: self._styled(ago(clock() - p.at) if p.at else ""), 10, True
            ),
            TableColumn("settings", lambda p: self._styled(summary(p.form))),
        )
        super().__init__(columns, key=lambda preset: (preset.name, preset.at), id="presets")

    def _styled(self, text: str, how: str = "quiet") -> Text:
        return Text(text, self.get_component_rich_style(f"preset-table--{how}", partial=True))


class BatchPresetsScreen(Panel[JobForm]):
    """Ends with a form, None when it was left."""

    HEADING = "Like an earlier job"
    HELP = """
    Enter takes the settings of an earlier job, or those that were saved under a name (★). An input
    that the form has already stays, with its output. Delete forgets a saved one.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete,ctrl+d", "forget", "Forget", id="batch.presets_forget"),
    ]

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self.found: list[JobPreset] | None = None

    def contents(self) -> ComposeResult:
        yield Static("looking ...", id="presets-said", classes="hint")
        yield PresetTable(self._clock)

    @work(exit_on_error=False, exclusive=True, group="presets")
    async def on_mount(self) -> None:
        found = await asyncio.to_thread(presets, here())
        self.found = [JobPreset("an empty form", JobForm()), *found]
        table = self.query_one(PresetTable)
        table.styles.height = min(len(self.found) + 1, 16)
        table.show(self.found)
        table.focus()
        said = told(self, "[batch.save F9] in the form saves its settings under a name.")
        self.query_one("#presets-said", Static).update(said)

    @on(Table.Selected)
    def _picked(self) -> None:
        chosen = self.query_one(PresetTable).record
        if chosen is not None:
            self.dismiss(chosen.form)

    @on(Table.Highlighted)
    def _moved(self) -> None:
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.query_one(PresetTable).record if action == "forget" else None
        return action != "forget" or (chosen is not None and _saved(chosen))

    @work(exit_on_error=False, group="presets")
    async def action_forget(self) -> None:
        chosen = self.query_one(PresetTable).record
        if chosen is None:
            return
        try:
            await asyncio.to_thread(forget, chosen.name)
        except IngotError as error:
            self.notify(str(error), severity="error", markup=False)
        self.found = [one for one in self.found or [] if one is not chosen]
        self.query_one(PresetTable).show(self.found)


def _saved(preset: JobPreset) -> bool:
    return preset.at is None and bool(preset.form.model)
