"""One repository of the hub: its facts, its builds, and which of them to take here."""

import asyncio
from dataclasses import dataclass

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from app.models import hub
from app.models.hub import (
    Advice,
    Contents,
    Found,
    RemoteBuild,
    Verdict,
    advise,
    bandwidth,
    contents,
    quick,
)
from app.models.pulling import PullRequest
from app.tui.widgets.find_tables import BuildTable
from quantize.hub.client import HubName
from runtimes.machine.hardware import memory_now

_MOVED_S = 0.25  # after the cursor moved, before the hub is asked


class RepoView(Vertical):
    """``Chosen`` when a build is wanted. What was read once is kept."""

    @dataclass
    class Chosen(Message):
        """``too_big``: what its memory is, where that is not free here."""

        request: PullRequest
        build: RemoteBuild
        too_big: str | None

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane")
        self._repo: HubName | None = None
        self.found: Found | None = None
        self._what: str | None = None  # the build to go to
        self._known: dict[HubName, Contents] = {}
        self._advice: Advice | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="facts", markup=False)
        yield BuildTable(id="builds")
        with VerticalScroll(id="notes", can_focus=False):
            yield Static(id="advice", markup=False)
            yield Static(id="about", markup=False)
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
        if self._repo is not None:
            self._look(self._repo, found)

    def refresh_builds(self) -> None:
        """What is here has changed."""
        if self._repo is not None:
            build = self.query_one(BuildTable).record
            self._what = build.kept.main if build else None
            self._look(self._repo, self.found, again=True)

    @work(exclusive=True, exit_on_error=False, group="look")
    async def _look(self, name: HubName, found: Found | None, *, again: bool = False) -> None:
        if name not in self._known or again:
            if not again:
                self._say("Looking ...")
                await asyncio.sleep(_MOVED_S)
            try:
                self._known[name] = await asyncio.to_thread(contents, name, quick())
            except Exception as error:
                self._say(hub.wrong(error), "bad")
                return
        there = self._known[name]
        self._fill(there, found)
        asked = self._what is not None and self._go_to(there, self._what)
        if there.builds:
            speed = await asyncio.to_thread(bandwidth)
            parameters = found.parameters if found else None
            self._advice = advise(there, parameters, memory_now()[1], speed)
            stays = asked or self.query_one(BuildTable).cursor > 0  # the user was quicker
            self._fill(there, found)
            if self._advice and not stays:
                self._go_to(there, self._advice.build.kept.main)

    def _go_to(self, there: Contents, what: str) -> bool:
        """Put the cursor on a build, by its path or label."""
        asked = what.lower()
        table = self.query_one(BuildTable)
        return any(
            table.go_to(build.kept.main)
            for build in there.builds
            if asked in (build.kept.main.lower(), build.kept.label.lower())
        )

    def _fill(self, there: Contents, found: Found | None) -> None:
        table = self.query_one(BuildTable)
        table.best = self._advice.build if self._advice else None
        table.parameters = found.parameters if found and found.exact else None
        table.free = memory_now()[1]
        self._builds(there.builds)
        self._about()

    def _builds(self, builds: tuple[RemoteBuild, ...]) -> None:
        table = self.query_one(BuildTable)
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
        table = self.query_one(BuildTable)
        lines = [hub.memory(table.record, table.free)] if table.record else []
        advice = f"★ {self._advice.why}" if self._advice else ""
        if (
            there.builds
            and not advice
            and all(b.need.verdict(table.free) is Verdict.TOO_BIG for b in there.builds)
        ):
            advice = "Nothing of it fits into the memory that is free."
        self._say("\n".join([*lines, *hub.further(there)]), advice=advice)
        button = self.query_one("#get", Button)
        button.label = "Use it" if table.record and table.record.here else "Download"

    def _say(self, text: str, style: str = "", *, advice: str = "") -> None:
        about = self.query_one("#about", Static)
        about.update(text)
        about.set_class(style == "bad", "bad")
        note = self.query_one("#advice", Static)
        note.update(advice)
        note.display = bool(advice)

    @on(BuildTable.Selected)
    @on(Button.Pressed, "#get")
    def _choose(self, event: Message) -> None:
        event.stop()
        table = self.query_one(BuildTable)
        build, name = table.record, self._repo
        if build is None or name is None:
            return
        there = self._known[name]
        same = sum(other.kept.label == build.kept.label for other in there.builds) > 1
        what = build.kept.main if same else build.kept.label
        big = build.need.verdict(table.free) is Verdict.TOO_BIG
        about = hub.memory(build, table.free) if big else None
        self.post_message(self.Chosen(PullRequest(name, what), build, about))
