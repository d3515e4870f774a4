"""The tables of the search: repositories, and the builds of one."""

from collections.abc import Hashable
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Checkbox, Select

from app.models.hub import (
    FORMATS,
    SORTS,
    Found,
    Query,
    RemoteBuild,
    Verdict,
    room_for,
    short,
    size_class,
    updated,
)
from app.tui.widgets.form import Check
from app.tui.widgets.table import Table, TableColumn
from quantize.disk import human
from runtimes.machine.hardware import memory_now

_COLOURS = {Verdict.FITS: "good", Verdict.TIGHT: "wait", Verdict.TOO_BIG: "bad"}
_ROOMY = 76  # columns in which licence and day have room beside the name


class RepoTable(Table[Found]):
    """What was found."""

    def __init__(self, id: str | None = None) -> None:
        self._few = (
            TableColumn[Found]("Model", lambda found: found.repo),
            TableColumn[Found]("Size", size_class, 6, right=True),
            TableColumn[Found]("Downloads", lambda found: short(found.downloads), 9, right=True),
        )
        self._many = (
            *self._few,
            TableColumn[Found]("Changed", updated, 10),
            TableColumn[Found]("Licence", _licence, 11),
        )
        super().__init__(self._few, key=lambda found: found.repo, id=id)

    def on_resize(self, event: events.Resize) -> None:
        self.columns = list(self._many if event.size.width >= _ROOMY else self._few)
        self.refresh()


class BuildTable(Table[RemoteBuild]):
    """The builds of one repository. The ``best`` one carries a star, what is here says so."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"build--good", "build--wait", "build--bad"}
    DEFAULT_CSS = """
    BuildTable {
        & > .build--good { color: $text-success; }
        & > .build--wait { color: $text-warning; }
        & > .build--bad { color: $text-error; }
    }
    """

    def __init__(self, id: str | None = None) -> None:
        columns = (
            TableColumn[RemoteBuild]("Build", self._label),
            TableColumn[RemoteBuild]("Size", lambda build: human(build.kept.size), 7, right=True),
            TableColumn[RemoteBuild]("Bits", self._bits, 4, right=True),
            TableColumn[RemoteBuild]("Memory", self._memory, 7),
            TableColumn[RemoteBuild]("Here", _arrived, 5, right=True),
        )
        super().__init__(columns, key=lambda build: build.kept.main, id=id)
        self.best: RemoteBuild | None = None
        self.parameters: int | None = None  # where the hub says them exactly
        self.free = 0

    def _label(self, build: RemoteBuild) -> str:
        sign = "★ " if self.best and build.kept == self.best.kept else "  "
        onnx = "" if build.kept.kind in ("gguf", build.kept.label) else f" {build.kept.kind}"
        return f"{sign}{build.kept.label}{onnx}"

    def _bits(self, build: RemoteBuild) -> str:
        bits = build.bits(self.parameters)
        return f"{bits:.1f}" if bits and self.parameters else f"{bits or '?'}"

    def _memory(self, build: RemoteBuild) -> Text:
        verdict = build.need.verdict(self.free)
        if build is self.record:  # the cursor has colours of its own
            return Text(str(verdict))
        name = f"build--{_COLOURS[verdict]}"
        return Text(str(verdict), self.get_component_rich_style(name, partial=True))


def _licence(found: Found) -> str:
    return "gated" if found.gated else found.licence or "?"


def _arrived(build: RemoteBuild) -> str:
    if build.here:
        return "✓"
    return f"{build.arrived / build.kept.size:.0%}" if build.arrived else ""


_TITLES = dict(zip(FORMATS, ("GGUF", "ONNX", "Originals"), strict=True))
_SIZES = (1, 2, 4, 8, 16, 32)  # GB, to choose a limit from


# What the search leaves out: formats, sizes, models that do not chat; and the order.


class FindFilters(Horizontal):
    """One line where there is room, else two. ``Changed`` when any of them is."""

    HELP: ClassVar[str] = """
    Space switches a filter. *Originals* are safetensors, from which `quantize` builds files.
    *Instruct* models have a chat template. *Fits here* compares the size of a 4-bit build, by the
    number of parameters, with the memory that is free; models of unknown size are listed.
    """

    class Changed(Message):
        """Something else is looked for."""

    def compose(self) -> ComposeResult:
        with Horizontal(classes="kinds"):
            for name, title in _TITLES.items():
                yield Check(title, value=name == "gguf", id=name)
            yield Check("Instruct", value=True, id="instruct")
            yield Check("Fits here", value=True, id="fits")
        with Horizontal(classes="bounds"):
            sizes = [("any size", 0), *((f"up to {size} GB", size * 10**9) for size in _SIZES)]
            orders = [(f"by {sort}", sort) for sort in SORTS]
            yield Select(sizes, value=0, allow_blank=False, id="largest", compact=True)
            yield Select(orders, value=SORTS[0], allow_blank=False, id="order", compact=True)

    def query_for(self, words: str) -> Query:
        """What to look for."""
        on = {box.id: box.value for box in self.query(Check)}
        largest = self.query_one("#largest", Select).value
        order = self.query_one("#order", Select).value
        limits = [largest] if isinstance(largest, int) and largest else []
        limits += [room_for(memory_now()[1])] if on["fits"] else []
        return Query(
            words,
            tuple(name for name in FORMATS if on[name]),
            on["instruct"],
            next(sort for sort in SORTS if sort == order),
            min(limits, default=None),
        )

    @property
    def values(self) -> tuple[Hashable, ...]:
        """How all of them stand."""
        boxes = (box.value for box in self.query(Check))
        return (*boxes, *(one.value for one in self.query(Select)))

    @property
    def said(self) -> str:
        """Those that leave something out, such as "GGUF, Instruct"."""
        names = [str(box.label) for box in self.query(Check) if box.value]
        largest = self.query_one("#largest", Select)
        names += [str(largest.selection)] if largest.value else []
        return ", ".join(names)

    def next_order(self) -> None:
        """Another order."""
        order = self.query_one("#order", Select)
        at = next(i for i, sort in enumerate(SORTS) if sort == order.value)
        order.value = SORTS[(at + 1) % len(SORTS)]

    @on(Checkbox.Changed)
    @on(Select.Changed)
    def _changed(self, event: Message) -> None:
        event.stop()
        self.post_message(self.Changed())
