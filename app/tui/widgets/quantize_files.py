"""The files that were built, in a table and a chart; what can be done with them."""

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, HorizontalScroll, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from app.builds.prospects import RUNTIMES
from app.builds.results import FileRow, Result, remove_file
from app.here import real, whole
from app.models.catalog import entry_of
from app.options import ModelOptions
from app.tui.app import app_of
from app.tui.keys import bind
from app.tui.screens.dialogs import ConfirmScreen, Panel
from app.tui.textual_patches import Pane, Plain, background, latest
from app.tui.widgets.chart import Axis, Chart, Mark, Series
from app.tui.widgets.table import Table, TableColumn
from quantize.manifest import FileEntry
from quantize.report.facts import bits_of, by_layer, depth, summary
from runtimes.errors import IngotError

_SHADE = 55  # percent of the colour behind the largest type
_WIDEST = 3  # columns of a layer


# Layers against roles: which type each tensor of a file has.


class TypeMapView(Pane):
    """Each cell has the bits of its type, and is the darker the more they are."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("Types by layer and role", id=id)
        self._entry: FileEntry | None = None

    def compose(self) -> ComposeResult:
        yield Plain(classes="types-told")
        with HorizontalScroll(classes="types-scroll", can_focus=False):
            yield Plain(classes="types-cells")
        yield Plain(classes="types-kinds")

    def show(self, entry: FileEntry | None) -> None:
        """Show the types of another file; hide the map for one that was built by a recipe."""
        self._entry = entry
        self.set_class(entry is None or entry.allocation is None, "-none")
        self.on_resize()

    def on_resize(self) -> None:
        entry = self._entry
        if entry is None or entry.allocation is None:
            return
        types = entry.allocation.types
        layers, others = by_layer(types)
        self.query_one(".types-told", Static).update(summary(entry, entry.allocation))
        roles = sorted({role for row in layers.values() for role in row})
        names = max(map(len, ("layer", *roles)))
        room = self.content_size.width - names - 1
        wide = min(max(room // max(len(layers), 1), 1), _WIDEST)
        rows = [Content(f"{'layer':<{names}} ") + _numbers(layers, wide)]
        for role in roles:
            row = [_shown(layer.get(role), wide) for layer in layers.values()]
            rows.append(Content.assemble(f"{role:<{names}} ", *row))
        self.query_one(".types-cells", Static).update(Content("\n").join(rows))
        counts = sorted(Counter(types.values()).items(), key=lambda one: (depth(one[0]), one[0]))
        told = [Content.assemble(_shown(kind, 1), f" {kind} {count}") for kind, count in counts]
        told += [Content(f"{name.removesuffix('.weight')} {kind}") for name, kind in others.items()]
        self.query_one(".types-kinds", Static).update(Content("   ").join(told))


class TypesScreen(Panel[None]):
    """The map of types in a box, where the screen has no room for it."""

    def __init__(self, entry: FileEntry) -> None:
        super().__init__(entry.recipe)
        self._entry = entry

    def contents(self) -> ComposeResult:
        yield TypeMapView()

    def on_mount(self) -> None:
        self.query_one(TypeMapView).show(self._entry)


def _shown(kind: str | None, wide: int) -> Content:
    """The bits in the type's name, the darker the more they are; blank without a tensor."""
    if kind is None:
        return Content(" " * wide)
    found = re.search(r"\d+", kind)
    bits = int(found[0]) if found else round(bits_of(kind))
    shade = round(10 + (_SHADE - 10) * depth(kind))
    digit = f"{bits if bits < 10 else 'F':>{min(wide, 2)}}{' ' * (wide - 2)}"
    return Content.styled(digit, f"$text on $primary {shade}%")


def _numbers(layers: Iterable[int], wide: int) -> Content:
    """Numbers of every fifth layer, each above its column."""
    line = ""
    for at, layer in enumerate(layers):
        if at % 5 == 0:
            line = f"{line:<{at * wide}}{layer:>{min(wide, 2)}}"
    return Content.styled(line, "$text-muted")


# Of each format: the colour of its points, and their form, for who sees no colours.
_LOOKS = {"gguf": ("$text-secondary", "●"), "onnx": ("$text-success", "◆")}
_STAR = "★"
_STEPS = 24  # between two points of the front
_CHOSEN = "$text-primary"
_GIGA = 2000  # megabytes, from which on an axis is in GB


class DistanceChart(Chart):
    """Left is smaller, lower is closer to the original."""

    def __init__(self, id: str, empty: str = "") -> None:
        super().__init__(x=Axis(), y=Axis("KL", log=True), empty=empty, id=id, classes="pane")
        self.border_title = "Size against KL from the original"

    def unit(self, megabytes: Iterable[float]) -> float:
        """The unit of the axis for such sizes, in megabytes."""
        large = max(megabytes, default=0.0) >= _GIGA
        self.x = Axis("GB" if large else "MB")
        return 1000.0 if large else 1.0


class FrontChart(DistanceChart):
    """The line is the front: no other file is as small and closer. The recommended file has a
    star."""

    def __init__(self, id: str) -> None:
        super().__init__(id, "Each file that is measured becomes a point here.")

    def show_result(self, result: Result | None, current: str | None = None) -> None:
        """The files of ``result``, and of them ``current``, which stands out."""
        points, found = (result.points, result.rows) if result else ((), ())
        rows = {row.recipe: row for row in found}
        unit = self.unit(point.megabytes for point in points)
        places = {p.label: (p.megabytes / unit, p.divergence) for p in points}
        front = _straight([places[p.label] for p in points if p.on_front])
        series = [Series("front", front, color="$border-blurred")] if len(front) > 1 else []
        for kind, (color, marker) in _LOOKS.items():
            if own := [at for name, at in places.items() if rows[name].entry.format == kind]:
                series.append(Series(RUNTIMES[kind], own, "points", color, marker))
        # Who comes first has its name: the one under the cursor, then the recommended one.
        order = sorted(places, key=lambda name: (name != current, not rows[name].best))
        marks = [_mark(*places[name], rows[name], current=name == current) for name in order]
        self.border_subtitle = f"{_STAR} recommended" if any(r.best for r in found) else ""
        self.show(series, marks)


def _straight(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """``points`` with others between them, so that what joins them is straight on a logarithmic
    axis."""
    made = list(points[:1])
    for (x, y), (to_x, to_y) in pairwise(points):
        shares = [step / _STEPS for step in range(1, _STEPS + 1)]
        made += [(x + (to_x - x) * share, y * (to_y / y) ** share) for share in shares]
    return made


def _mark(x: float, y: float, row: FileRow, *, current: bool) -> Mark:
    color, marker = _LOOKS[row.entry.format]
    label = f"[{row.recipe}]" if current else row.recipe
    color = _CHOSEN if current or row.best else color
    return Mark(x, y, label, _STAR if row.best else marker, color)


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
    BINDINGS = [
        bind("v", "quantize.compare", "Compare"),
        bind("c", "quantize.path", "Copy path"),
        bind("delete,ctrl+d", "quantize.remove", "Delete"),
        bind("o", "quantize.report", "Report"),
        bind("m", "quantize.types", "Types"),
    ]

    class Removed(Message):
        """A file was deleted."""

    def __init__(self) -> None:
        super().__init__(id="quantize-result")
        self._table = FileTable()
        self.result: Result | None = None

    def compose(self) -> ComposeResult:
        yield Plain(_EMPTY, id="advice")
        yield self._table
        with Horizontal(id="file-actions"):
            for name, title in _BUTTONS.items():
                yield Button(title, id=f"file-{name}", compact=True)
        yield FrontChart(id="chart")
        yield TypeMapView(id="types")

    def on_mount(self) -> None:
        self.show(None)

    def show(self, result: Result | None) -> None:
        """Another folder's files, or new figures."""
        self.result, told = result, _EMPTY
        self.set_class(result is None or not result.rows, "-empty")
        if result is not None and result.rows:
            best = f"★ {result.advice}" if result.advice else "Nothing was measured."
            told = f"{result.model} in {result.folder}\n{best}"
            self._table.show_result(result)
        self.query_one("#advice", Static).update(told)
        self._draw()

    @on(Table.Highlighted)
    def _draw(self) -> None:
        row = self._table.record
        self.query_one(FrontChart).show_result(self.result, row.recipe if row else None)
        self.query_one(TypeMapView).show(row.entry if row and self.result else None)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        row = None if self.has_class("-empty") else self._table.record
        if row is not None and action == "types":
            return row.entry.allocation is not None
        return row is not None or action not in ("compare", "path", "remove", "report", "types")

    @on(Button.Pressed)
    async def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        await self.run_action(str(event.button.id).removeprefix("file-"))

    # What can be done with a file

    @on(Table.Selected)
    def action_chat(self) -> None:
        """Load the file under the cursor."""
        row = self._table.record
        if self.result is not None and row is not None:
            app = app_of(self)
            app.load_model(str(self.result.folder), ModelOptions(recipe=row.recipe))
            app.switch_mode("chat")

    @latest
    async def action_compare(self) -> None:
        """Turn to the comparison with the marked files."""
        from app.tui.screens.compare import CompareScreen

        rows = self._table.compared()
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
        if (row := self._table.record) is not None:
            path = str(whole(row.path))
            self.app.copy_to_clipboard(path)
            self.notify(f"{path}\n(copied)", title=row.recipe, timeout=10)

    @background
    async def action_remove(self) -> None:
        """Delete the file under the cursor, after asking."""
        row, result = self._table.record, self.result
        if row is None or result is None:
            return
        question = f"Delete {row.path.name} ({row.cells[0]} MB)? It can be built again."
        if not await self.app.push_screen_wait(ConfirmScreen(question, "Delete")):
            return
        try:
            await asyncio.to_thread(remove_file, result.folder, row.recipe)
        except (IngotError, OSError) as error:
            self.notify(str(error), title="It was not deleted", severity="error")
        self.post_message(self.Removed())

    def action_types(self) -> None:
        """The types of the file under the cursor, where they would not fit below."""
        if self._table.record is not None:
            self.app.push_screen(TypesScreen(self._table.record.entry))

    def action_report(self) -> None:
        """Show where the page is; open it where there is a desktop to open it on."""
        if self.result is None:
            return
        path = self.result.report
        if path is None:
            self.notify("There is no report yet; building writes it.", severity="warning")
            return
        self.app.copy_to_clipboard(str(path))
        self.notify(f"{path}\n(its path is copied)", title="Report", timeout=10)
        if _has_desktop() and not self.app.is_headless:
            self.app.open_url(real(path).as_uri())


_BUTTONS = {
    "chat": "Chat",
    "compare": "Compare",
    "path": "Copy path",
    "report": "Report",
    "remove": "Delete",
}


class FileTable(Table[FileRow]):
    """The files of a ``Result``, with the columns that it has."""

    BINDINGS = [
        bind("enter", "quantize.chat_row", "Chat", action="select"),
        bind("space", "quantize.mark", "Mark"),
    ]

    def __init__(self) -> None:
        super().__init__((), key=lambda row: row.recipe, id="files-table")
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
            cell = partial(lambda at, row: row.cells[at], at)
            self.columns.append(TableColumn(heading, cell, width, right=True))
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
        others.sort(key=lambda row: (row not in marked, not row.best))
        return [self.record, *others[:1]]


def _has_desktop() -> bool:
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or sys.platform in ("darwin", "win32")
