"""The files that were built, in a table and a chart; what can be done with them."""

import asyncio
import os
import sys
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, HorizontalScroll, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from app.builds.results import Cell, FileRow, Result, TypeMap, remove_file
from app.here import real, whole
from app.models.catalog import entry_of
from app.options import ModelOptions
from app.tui.app import app_of
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.widgets.recipe_chart import FrontChart
from app.tui.widgets.table import Table, TableColumn
from runtimes.errors import IngotError

_SHADE = 55  # percent of the colour behind the largest type
_WIDEST = 3  # columns of a layer


# Layers against roles: which type each tensor of a file has.


class TypeMapView(Vertical):
    """Each cell has the bits of its type, and is the darker the more they are."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = "Types by layer and role"
        self._map: TypeMap | None = None

    def compose(self) -> ComposeResult:
        yield Static(classes="types-told", markup=False)
        with HorizontalScroll(classes="types-scroll", can_focus=False):
            yield Static(classes="types-cells", markup=False)
        yield Static(classes="types-kinds", markup=False)

    def show(self, found: TypeMap | None) -> None:
        """Of another file; hidden for one that was built by a recipe."""
        self._map = found
        self.set_class(found is None, "-none")
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        found = self._map
        if found is None:
            return
        self.query_one(".types-told", Static).update(found.told)
        names = max(map(len, ("layer", *(name for name, _ in found.roles))))
        room = self.content_size.width - names - 1
        wide = min(max(room // max(len(found.layers), 1), 1), _WIDEST)
        rows = [Content(f"{'layer':<{names}} ") + _numbers(found.layers, wide)]
        for name, cells in found.roles:
            row = [_shown(cell, wide) for cell in cells]
            rows.append(Content.assemble(f"{name:<{names}} ", *row))
        self.query_one(".types-cells", Static).update(Content("\n").join(rows))
        legend = [
            Content.assemble(_shown(cell, 1), f" {cell.kind} {count}")
            for cell, count in found.kinds
        ]
        alone = [Content(f"{name} {cell.kind}") for name, cell in found.others]
        self.query_one(".types-kinds", Static).update(Content("   ").join([*legend, *alone]))


class TypesScreen(Panel[None]):
    """The same in a box, where the screen has no room for it."""

    def __init__(self, recipe: str, found: TypeMap) -> None:
        super().__init__(recipe)
        self._map = found

    def contents(self) -> ComposeResult:
        yield TypeMapView()

    def on_mount(self) -> None:
        self.query_one(TypeMapView).show(self._map)


def _shown(cell: Cell | None, wide: int) -> Content:
    if cell is None:
        return Content(" " * wide)
    shade = round(10 + (_SHADE - 10) * cell.depth)
    digit = f"{cell.digit:>{min(wide, 2)}}{' ' * (wide - 2)}"
    return Content.styled(digit, f"$text on $primary {shade}%")


def _numbers(layers: tuple[int, ...], wide: int) -> Content:
    """Of every fifth layer, where it is."""
    line = ""
    for at, layer in enumerate(layers):
        if at % 5 == 0:
            line = f"{line:<{at * wide}}{layer:>{min(wide, 2)}}"
    return Content.styled(line, "$text-muted")


_EMPTY = "No files yet. Name a model that was built before, or build one."


class QuantizeResult(Vertical):
    """From here a file is loaded for a chat, compared, deleted, and the page with all figures is
    found. ``Removed`` when a file is no longer there."""

    HELP = """
    Each file with its size, its mean KL divergence from the original (in nats, 0 is the original),
    how often both find the same token the most likely, its accuracy on graded questions, its
    tokens per second alone and for 16 rows together, and its peak memory. A dash was not
    measured. In the chart left is smaller, and lower is closer to the original; the recommended
    file has a ★, here and there. **[quantize.mark space]** marks files:
    **[quantize.compare v]** compares the marked ones, or the one under the cursor with the
    recommended one. Of a file that was built for a target **[quantize.types m]** shows the bits of
    every tensor, layers against roles, with what was predicted and measured, and what one more
    megabyte would buy; a tall screen has that below.
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "compare", "Compare", id="quantize.compare"),
        Binding("c", "path", "Copy path", id="quantize.path"),
        Binding("delete,ctrl+d", "remove", "Delete", id="quantize.remove"),
        Binding("o", "report", "Report", id="quantize.report"),
        Binding("m", "types", "Types", id="quantize.types"),
    ]

    class Removed(Message):
        """A file was deleted."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.result: Result | None = None

    def compose(self) -> ComposeResult:
        yield Static(_EMPTY, id="advice", markup=False)
        yield FileTable(id="files-table")
        with Horizontal(id="file-actions"):
            for name, title in _BUTTONS:
                yield Button(title, id=f"file-{name}", compact=True)
        yield FrontChart(id="chart")
        yield TypeMapView(id="types")

    def on_mount(self) -> None:
        self.show(None)

    def show(self, result: Result | None) -> None:
        """Another folder's files, or new figures."""
        self.result = result
        table, there = self.query_one(FileTable), result is not None and bool(result.rows)
        for one in (table, self.query_one("#file-actions"), self.query_one(FrontChart)):
            one.display = there
        advice = self.query_one("#advice", Static)
        if result is None or not there:
            advice.update(_EMPTY)
        else:
            best = f"★ {result.advice}" if result.advice else "Nothing was measured."
            advice.update(f"{result.model} in {result.folder}\n{best}")
            table.show_result(result)
        self._draw()

    @on(Table.Highlighted)
    def _draw(self) -> None:
        row = self.query_one(FileTable).record
        self.query_one(FrontChart).show_result(self.result, row.recipe if row else None)
        self.query_one(TypeMapView).show(row.types if row and self.result else None)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        there = self.result is not None and bool(self.result.rows)
        if there and action == "types":
            row = self.query_one(FileTable).record
            return row is not None and row.types is not None
        return there if action in ("compare", "path", "remove", "report", "types") else True

    @on(Button.Pressed)
    async def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        name = str(event.button.id).removeprefix("file-")
        await self.run_action(name)

    # What can be done with a file

    @on(Table.Selected)
    def action_chat(self) -> None:
        """Load the file under the cursor."""
        row = self.query_one(FileTable).record
        if self.result is not None and row is not None:
            app = app_of(self)
            app.load_model(str(self.result.folder), ModelOptions(recipe=row.recipe))
            app.switch_mode("chat")

    @work(exit_on_error=False, exclusive=True, group="compare")
    async def action_compare(self) -> None:
        """Turn to the comparison with the marked files."""
        from app.tui.screens.compare import CompareScreen

        rows = self.query_one(FileTable).compared()
        if len(rows) < 2:
            self.notify("Mark two files with space to compare them.", severity="warning")
            return
        entries = [await asyncio.to_thread(entry_of, row.path) for row in rows]
        self.app.switch_mode("compare")
        screen = self.app.screen
        if isinstance(screen, CompareScreen):
            await screen.choose(entries)

    def action_path(self) -> None:
        """Tell where the file is, and copy that."""
        row = self.query_one(FileTable).record
        if row is not None:
            path = str(whole(row.path))
            self.app.copy_to_clipboard(path)
            self.notify(f"{path}\n(copied)", title=row.recipe, timeout=10, markup=False)

    @work(exit_on_error=False, group="remove")
    async def action_remove(self) -> None:
        """Delete the file under the cursor, after asking."""
        row, result = self.query_one(FileTable).record, self.result
        if row is None or result is None:
            return
        question = f"Delete {row.path.name} ({row.cells[0]} MB)? It can be built again."
        if not await self.app.push_screen_wait(ConfirmScreen(question, "Delete")):
            return
        try:
            await asyncio.to_thread(remove_file, result.folder, row.recipe)
        except (IngotError, OSError) as error:
            self.notify(str(error), title="It was not deleted", severity="error", markup=False)
        self.post_message(self.Removed())

    def action_types(self) -> None:
        """The types of the file under the cursor, where they would not fit below."""
        row = self.query_one(FileTable).record
        if row is not None and row.types is not None:
            self.app.push_screen(TypesScreen(row.recipe, row.types))

    def action_report(self) -> None:
        """Show where the page is; open it where there is a desktop to open it on."""
        if self.result is None:
            return
        path = self.result.report
        if path is None:
            self.notify("There is no report yet; building writes it.", severity="warning")
            return
        self.app.copy_to_clipboard(str(path))
        self.notify(f"{path}\n(its path is copied)", title="Report", timeout=10, markup=False)
        if _has_desktop() and not self.app.is_headless:
            self.app.open_url(real(path).as_uri())


_BUTTONS = (
    *(("chat", "Chat"), ("compare", "Compare"), ("path", "Copy path")),
    *(("report", "Report"), ("remove", "Delete")),
)


class FileTable(Table[FileRow]):
    """The files of a ``Result``, with the columns that it has."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Chat", id="quantize.chat_row"),
        Binding("space", "mark", "Mark", id="quantize.mark"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__((), key=lambda row: row.recipe, id=id)
        self._marked: set[str] = set()

    def show_result(self, result: Result) -> None:
        names = ["File", *(row.recipe for row in result.rows)]
        self.columns = [
            TableColumn("", lambda row: "✓" if row.recipe in self._marked else "", 1),
            TableColumn("", lambda row: "★" if row.best else "", 1),
            TableColumn("File", lambda row: row.recipe, max(map(len, names))),
        ]
        for at, heading in enumerate(result.headings):
            width = max(len(heading), *(len(row.cells[at]) for row in result.rows))
            self.columns.append(TableColumn(heading, partial(_cell, at), width, right=True))
        self._marked &= {row.recipe for row in result.rows}
        self.styles.height = len(result.rows) + 1
        self.show(result.rows)

    def action_mark(self) -> None:
        """Mark the file under the cursor, or unmark it."""
        if self.record is not None:
            self._marked ^= {self.record.recipe}
            self.refresh()

    def compared(self) -> list[FileRow]:
        """The marked files; without two, the one under the cursor and the recommended one, or the
        largest."""
        marked = [row for row in self.rows if row.recipe in self._marked]
        if len(marked) > 1 or self.record is None:
            return marked
        others = [row for row in reversed(self.rows) if row != self.record]
        other = next((row for row in (*marked, *others) if row.best or row in marked), None)
        return [self.record, *([other] if other else others[:1])]


def _cell(at: int, row: FileRow) -> str:
    return row.cells[at]


def _has_desktop() -> bool:
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or sys.platform in ("darwin", "win32")
