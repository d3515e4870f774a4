"""The table of model files, with a filter and an order of its own."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import DataTable

from app.models.entries import Entry, Fit, quality_of, size_of, speed_of, state_of, type_of

_COLUMNS = (
    *(("type", "Type", 13), ("size", "Size", 7), ("speed", "tok/s", 7)),
    *(("quality", "Quality", 8), ("state", "Memory", 7)),
)
_NAME = "name"
_PADDING = 2  # of each cell
_LEAST = 16
ORDERS = ("name", "size", "speed", "quality")


class ModelTable(DataTable[Text]):
    """Rows are keyed by ``Entry.key``. ``marked`` entries carry a tick, the ``current`` one a dot;
    what cannot be used says so in the last column."""

    @dataclass
    class Shown(Message):
        """The highlighted entry is another one, or there is none."""

        entry: Entry | None

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self.order = ORDERS[0]
        self.marked: list[str] = []
        self.current: str | None = None
        self._entries: dict[str, Entry] = {}
        self._fits: dict[str, Fit] = {}
        self._words: tuple[str, ...] = ()
        self._listed: list[str] = []  # keys, in the order of the rows

    def on_mount(self) -> None:
        self.add_column("Model", key=_NAME, width=_LEAST)
        for key, title, width in _COLUMNS:
            self.add_column(title, key=key, width=width)

    def on_resize(self, event: events.Resize) -> None:
        """Give the name the room that there is."""
        fixed = sum(width + _PADDING for _, _, width in _COLUMNS)
        width = max(event.size.width - fixed - _PADDING, _LEAST)
        column = next(c for c in self.columns.values() if c.key.value == _NAME)
        if column.width != width:
            column.width = width
            self._rebuild()

    def set_entries(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.key: entry for entry in entries}
        self._rebuild()

    def note(self, entry: Entry, fit: Fit | None) -> None:
        """Note what was found out about a file: its memory, or that it is broken."""
        self._entries[entry.key] = entry
        if fit is not None:
            self._fits[entry.key] = fit
        if entry.key in self.rows:
            self.update_cell(entry.key, "state", Text(state_of(entry, fit)))
        self.post_message(self.Shown(self.highlighted))

    def set_filter(self, text: str) -> None:
        """Show only entries that match every word of ``text``."""
        self._words = tuple(text.split())
        self._rebuild()

    def next_order(self) -> None:
        self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        self._rebuild()

    def toggle(self, key: str) -> None:
        """Tick an entry, or take its tick away."""
        if key in self.marked:
            self.marked.remove(key)
        else:
            self.marked.append(key)
        self._rebuild()

    @property
    def highlighted(self) -> Entry | None:
        return self._entries.get(self._key) if self._key is not None else None

    @property
    def _key(self) -> str | None:
        return self._listed[self.cursor_row] if 0 <= self.cursor_row < len(self._listed) else None

    @property
    def listed(self) -> list[Entry]:
        """Those that match the filter, in the order of the rows."""
        return [self._entries[key] for key in self._listed]

    def entries(self, keys: Collection[str]) -> tuple[Entry, ...]:
        """Those of these keys that still exist, in the order of ``keys``."""
        return tuple(self._entries[key] for key in keys if key in self._entries)

    def fit_of(self, entry: Entry) -> Fit | None:
        return self._fits.get(entry.key)

    def go_to(self, key: str) -> None:
        if key in self._listed:
            self.move_cursor(row=self._listed.index(key))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self.post_message(self.Shown(self.highlighted))

    def _rebuild(self) -> None:
        if not self.columns:
            return
        before = self._key
        entries = [entry for entry in self._entries.values() if entry.matches(self._words)]
        ordered = _sorted(entries, self.order)
        self._listed = [entry.key for entry in ordered]
        self.clear()
        for entry in ordered:
            self.add_row(*self._cells(entry), key=entry.key)
        if before is not None:
            self.go_to(before)
        self.post_message(self.Shown(self.highlighted))

    def _cells(self, entry: Entry) -> list[Text]:
        column = next(c for c in self.columns.values() if c.key.value == _NAME)
        sign = "✓ " if entry.key in self.marked else "● " if entry.key == self.current else ""
        name = sign + _short(entry, column.width - len(sign))
        right = [size_of(entry), speed_of(entry), quality_of(entry)]
        return [
            Text(name, style="bold" if sign else ""),
            Text(type_of(entry)),
            *(Text(text, justify="right") for text in right),
            Text(state_of(entry, self._fits.get(entry.key))),
        ]


def _short(entry: Entry, width: int) -> str:
    """The label with its middle left out where it is too long: the recipe tells files apart."""
    if len(entry.label) <= width:
        return entry.label
    end = f" · {entry.recipe}" if entry.recipe else entry.name[-6:]
    return f"{entry.name[: max(width - len(end) - 1, 1)]}…{end}"[:width]


def _sorted(entries: list[Entry], order: str) -> list[Entry]:
    """By ``order``; the figures' best first, unknown last. The catalog's order decides ties."""
    match order:
        case "size":
            return sorted(entries, key=lambda e: e.bytes if e.bytes is not None else float("inf"))
        case "speed":
            return sorted(entries, key=lambda e: -(e.decode_tps or 0.0))
        case "quality":
            return sorted(entries, key=lambda e: -(e.quality.task_accuracy if e.quality else 0.0))
        case _:
            return entries
