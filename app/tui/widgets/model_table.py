"""The table of model files, with a filter and an order of its own."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from rich.text import Text

from app.models.catalog import (
    Fit,
    ModelEntry,
    quality_of,
    quality_order,
    size_of,
    speed_of,
    state_of,
    type_of,
)
from app.tui.widgets.table import Table, TableColumn

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

    def __init__(self, id: str | None = None) -> None:
        columns: tuple[TableColumn[ModelEntry], ...] = (
            TableColumn("Model", self._label),
            TableColumn("Type", type_of, 13),
            TableColumn("Size", size_of, 7, right=True),
            TableColumn("tok/s", speed_of, 7, right=True),
            TableColumn("Quality", quality_of, 9, right=True),
            TableColumn("Memory", lambda entry: state_of(entry, self.fit_of(entry)), 7),
        )
        super().__init__(columns, key=lambda entry: entry.key, id=id)
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
        if key in self.marked:
            self.marked.remove(key)
        else:
            self.marked.append(key)
        self._again()

    def entries(self, keys: Collection[str]) -> tuple[ModelEntry, ...]:
        """Those of these keys that still exist, in the order of ``keys``."""
        return tuple(self._entries[key] for key in keys if key in self._entries)

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
