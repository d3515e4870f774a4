"""The tables of the search: repositories, and the builds of one."""

from typing import ClassVar

from rich.text import Text
from textual import events

from app.models.hub import Found, RemoteBuild, Verdict, short, size_class, updated
from app.tui.widgets.table import Table, TableColumn
from quantize.disk import human

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
