"""Getting a model from the hub: a name, its builds, and the download with its progress."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from app.figures import duration
from app.models import library
from app.models.pulling import Offer, PullRequest, parse_request
from app.models.pulljob import PullJob, PullState
from app.tui.modes import Occupied
from app.tui.screens.dialogs import Panel
from quantize.disk import human
from runtimes.errors import IngotError

_LOOKS = 1 / 8  # seconds between two looks at the job


class PullScreen(Occupied, Panel[str]):
    """Ends with the pulled model's name in the library, None when it was left.

    Stopping keeps what has arrived: the same download resumes from there later.
    """

    CSS_PATH = "pull.tcss"
    HEADING = "Get a model from the hub"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Stop / Back", id="pull.leave"),
        Binding("tab", "app.focus_next", "Name / Builds", id="pull.other", show=True),
    ]

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._name_given = name
        self._request: PullRequest | None = None
        self._offers: tuple[Offer, ...] = ()
        self._job: PullJob | None = None

    def contents(self) -> ComposeResult:
        yield Input(self._name_given, placeholder="ORG/NAME or ORG/NAME:Q4_K_M", id="name")
        yield OptionList(id="offers", markup=False)
        yield ProgressBar(id="bar", show_eta=False)
        yield Static(id="said", markup=False)

    def on_mount(self) -> None:
        self.query_one("#bar").display = False
        self._say("The name of a repository with GGUF or ONNX files, then enter.")

    def on_unmount(self) -> None:
        """Nothing runs unseen."""
        self.interrupt()

    @on(Input.Submitted, "#name")
    def _look(self, event: Input.Submitted) -> None:
        try:
            self._request = parse_request(event.value.strip())
        except IngotError as error:
            self._say(str(error))
            return
        self._show_offers(())
        self._run(self._request)

    @on(OptionList.OptionSelected, "#offers")
    def _choose(self, event: OptionList.OptionSelected) -> None:
        assert self._request is not None
        offer = self._offers[event.option_index]
        same = sum(other.label == offer.label for other in self._offers) > 1
        self._run(replace(self._request, what=offer.main if same else offer.label))

    @work(exit_on_error=False, group="pull")
    async def _run(self, request: PullRequest) -> None:
        if self._job is not None:
            self._say("One download at a time: esc stops the one that runs.")
            return
        job = self._job = PullJob(request)
        job.start()
        self._say(f"Looking at {request.name} ...")
        while not (state := job.poll()).ended:
            self.show(state)
            await asyncio.sleep(_LOOKS)
        self._job = None
        self.show(state)

    def show(self, state: PullState) -> None:
        bar = self.query_one("#bar", ProgressBar)
        bar.display = state.total is not None and not state.ended
        if state.offers is not None:
            self._show_offers(state.offers)
        elif state.path is not None:
            self.dismiss(_name_of(state.path))
        elif state.ended:
            stopped = "Stopped. What has arrived stays; the same download resumes from there."
            self._say(state.error or stopped)
        else:
            bar.update(total=state.total, progress=state.done)
            self._say(progress_line(state))

    def _show_offers(self, offers: tuple[Offer, ...]) -> None:
        self._offers = offers
        builds = self.query_one("#offers", OptionList)
        wide = max((len(offer.label) for offer in offers), default=0)
        builds.set_options(Option(_offer_line(offer, wide)) for offer in offers)
        if offers:
            self._say("Which one? Enter downloads it.")
            builds.focus()
            builds.highlighted = 0

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(text)

    def action_leave(self) -> None:
        """Stop the download; when none runs, go back."""
        if not self.interrupt():
            self.dismiss(None)

    def interrupt(self) -> bool:
        if self._job is not None:
            self._job.cancel()
        return self._job is not None


def progress_line(state: PullState) -> str:
    """Such as "1.2 GB of 4.7 GB · 25 MB/s · 2 min 20 s left", as much as is known."""
    if state.total is None:
        return f"{state.stage or 'waiting'} ..."
    parts = [f"{human(state.done)} of {human(state.total)}"]
    if state.rate is not None:
        parts.append(f"{human(int(state.rate))}/s")
    if state.seconds_left is not None:
        parts.append(f"{duration(state.seconds_left)} left")
    line = " · ".join(parts)
    return f"{line}\n{state.note}" if state.note else line


def _offer_line(offer: Offer, wide: int) -> str:
    line = f"{offer.label:<{wide}}  {human(offer.bytes):>7}  {offer.kind}"
    if offer.kept:
        return f"{line}  in the library"
    return f"{line}  {human(offer.arrived)} have arrived" if offer.arrived else line


def _name_of(path: Path) -> str:
    """A pulled file as the library calls it."""
    for model in library.models():
        for build in model.builds:
            if model.path(build) == path:
                return f"{model.repo}:{build.label}"
    return str(path)
