"""What the search leaves out: formats, sizes, models that do not chat; and the order."""

from collections.abc import Hashable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Checkbox, Select

from app.models.hub import FORMATS, SORTS, Query, room_for
from app.tui.widgets.form import Check
from runtimes.machine.hardware import memory_now

_TITLES = dict(zip(FORMATS, ("GGUF", "ONNX", "Originals"), strict=True))
_SIZES = (1, 2, 4, 8, 16, 32)  # GB, to choose a limit from


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
