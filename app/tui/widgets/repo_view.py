"""The search's filters and table, and one repository of the hub: its facts, its builds, and which
of them to take here."""

import asyncio
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Select, Static

from app.models import hub
from app.models.hub import (
    FORMATS,
    SORTS,
    Contents,
    Found,
    Query,
    RemoteBuild,
    advise,
    bandwidth,
    contents,
    room_for,
    short,
    size_class,
    updated,
)
from app.models.pulling import PullRequest
from app.tui.textual_patches import Pane, Plain, latest
from app.tui.widgets.form import Check
from app.tui.widgets.table import Table, TableColumn
from quantize.disk import human
from quantize.hub.client import HubName
from runtimes.machine.hardware import memory_now

_COLOURS = {"fits": "good", "tight": "wait", "too big": "bad"}
_ROOMY = 76  # columns in which licence and day have room beside the name


class RepoTable(Table[Found]):
    """The repositories that were found."""

    def __init__(self) -> None:
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
        super().__init__(self._few, key=lambda found: found.repo, id="repos")

    def on_resize(self, event: events.Resize) -> None:
        self.columns = list(self._many if event.size.width >= _ROOMY else self._few)
        self.refresh()


class BuildTable(Table[RemoteBuild]):
    """The builds of one repository. The ``best`` one carries a star, what is here says so."""

    def __init__(self) -> None:
        super().__init__(
            (
                TableColumn("Build", self._label),
                TableColumn("Size", lambda build: human(build.kept.size), 7, right=True),
                TableColumn("Bits", self._bits, 4, right=True),
                TableColumn("Memory", self._memory, 7),
                TableColumn("Here", _arrived, 5, right=True),
            ),
            key=lambda build: build.kept.main,
            id="builds",
        )
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

    def _memory(self, build: RemoteBuild) -> tuple[str, str]:
        verdict = build.need.verdict(self.free)
        return verdict, _COLOURS[verdict]


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
    """One line where there is room, else two."""

    HELP = """
    Space switches a filter. *Originals* are safetensors, from which `quantize` builds files.
    *Instruct* models have a chat template. *Fits here* compares the size of a 4-bit build, by the
    number of parameters, with the memory that is free; models of unknown size are listed.
    """

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
        """The query that the filters make of ``words``."""
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
    def said(self) -> str:
        """Names of the filters that leave something out, such as "GGUF, Instruct"."""
        names = [str(box.label) for box in self.query(Check) if box.value]
        largest = self.query_one("#largest", Select)
        return ", ".join([*names, str(largest.selection)] if largest.value else names)

    def next_order(self) -> None:
        """Another order."""
        order = self.query_one("#order", Select)
        at = next(i for i, sort in enumerate(SORTS) if sort == order.value)
        order.value = SORTS[(at + 1) % len(SORTS)]


_MOVED_S = 0.25  # after the cursor moved, before the hub is asked


class RepoView(Pane):
    """``Chosen`` when a build is wanted. What was read once is kept."""

    @dataclass
    class Chosen(Message):
        """``too_big``: what its memory is, where that is not free here."""

        request: PullRequest
        build: RemoteBuild
        too_big: str | None

    def __init__(self) -> None:
        super().__init__(id="one")
        self._table = BuildTable()
        self._repo: HubName | None = None
        self.found: Found | None = None
        self._what: str | None = None  # the build to go to
        self._known: dict[HubName, Contents] = {}
        self._advice: tuple[RemoteBuild, str] | None = None  # the best one, and why

    def compose(self) -> ComposeResult:
        yield Plain(id="facts")
        yield self._table
        with VerticalScroll(id="notes", can_focus=False):
            yield Plain(id="advice")
            yield Plain(id="about")
        yield Button("Download", "primary", id="get", compact=True)

    def on_mount(self) -> None:
        self.show(None)

    def show(
        self, found: Found | None, name: HubName | None = None, what: str | None = None
    ) -> None:
        """Another repository, at ``name``'s revision; the cursor goes to the build ``what``."""
        self.found, self._what, self._advice = found, what, None
        self._repo = name or (HubName(found.repo) if found else None)
        self.border_title = Content(str(self._repo or "Builds"))
        self.query_one("#facts", Static).update("\n".join(hub.facts(found)) if found else "")
        self._builds(())
        self._say("")
        self._look()

    def refresh_builds(self) -> None:
        """Read the builds anew: what is here has changed."""
        build = self._table.record
        self._what = build.kept.main if build else None
        self._look(again=True)

    @latest
    async def _look(self, *, again: bool = False) -> None:
        name = self._repo
        if name is None:
            return
        if name not in self._known or again:
            if not again:
                self._say("Looking ...")
                await asyncio.sleep(_MOVED_S)
            try:
                self._known[name] = await asyncio.to_thread(contents, name)
            except Exception as error:
                self._say(hub.wrong(error), "bad")
                return
        there, asked = self._known[name], (self._what or "").lower()
        self._fill(there)
        stays = bool(asked) and any(
            self._table.go_to(build.kept.main)
            for build in there.builds
            if asked in (build.kept.main.lower(), build.kept.label.lower())
        )
        if there.builds:
            speed = await asyncio.to_thread(bandwidth)
            parameters = self.found.parameters if self.found else None
            self._advice = advise(there, parameters, memory_now()[1], speed)
            stays = stays or self._table.cursor > 0  # the user was quicker
            self._fill(there)
            if self._advice and not stays:
                self._table.go_to(self._advice[0].kept.main)

    def _fill(self, there: Contents) -> None:
        table, found = self._table, self.found
        table.best = self._advice[0] if self._advice else None
        table.parameters = found.parameters if found and found.exact else None
        table.free = memory_now()[1]
        self._builds(there.builds)
        self._about()

    def _builds(self, builds: tuple[RemoteBuild, ...]) -> None:
        table = self._table
        table.display = bool(builds)
        self.set_class(not builds, "-empty")
        table.styles.height = len(builds) + 1
        table.show(builds)

    @on(BuildTable.Highlighted)
    def _moved(self, event: BuildTable.Highlighted) -> None:
        event.stop()
        self._about()

    def _about(self) -> None:
        there = self._known.get(self._repo) if self._repo else None
        if there is None:
            return
        table = self._table
        lines = [hub.memory(table.record, table.free)] if table.record else []
        verdicts = {build.need.verdict(table.free) for build in there.builds}
        advice = ""
        if self._advice:
            advice = f"★ {self._advice[1]}"
        elif verdicts == {"too big"}:
            advice = "Nothing of it fits into the memory that is free."
        self._say("\n".join([*lines, *hub.further(there)]), advice=advice)
        button = self.query_one("#get", Button)
        button.label = "Use it" if table.record and table.record.here else "Download"

    def _say(self, text: str, style: str = "", *, advice: str = "") -> None:
        about = self.query_one("#about", Static)
        about.update(text)
        about.set_classes(style)
        self.query_one("#advice", Plain).say(advice)

    @on(BuildTable.Selected)
    @on(Button.Pressed, "#get")
    def _choose(self, event: Message) -> None:
        event.stop()
        table = self._table
        build, name = table.record, self._repo
        if build is None or name is None:
            return
        there = self._known[name]
        same = sum(other.kept.label == build.kept.label for other in there.builds) > 1
        what = build.kept.main if same else build.kept.label
        big = build.need.verdict(table.free) == "too big"
        about = hub.memory(build, table.free) if big else None
        self.post_message(self.Chosen(PullRequest(name, what), build, about))
