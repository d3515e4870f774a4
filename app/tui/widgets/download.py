"""One download, with its progress and what can be done about it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, ProgressBar, Static

from app.figures import duration
from app.models import library
from app.models.pulling import PullJob, PullRequest, PullState
from quantize.disk import human

_LOOKS = 1 / 8  # seconds between two looks at the job


class Download(Vertical):
    """Hidden until something is pulled. Stopping keeps what has arrived: the same download resumes
    from there later. ``use`` is what can be done with a model that is here."""

    @dataclass
    class Ended(Message):
        """``name`` is the model's in the library; None when it was stopped or failed."""

        name: str | None

    @dataclass
    class Wanted(Message):
        """The downloaded model is to be used."""

        name: str

    def __init__(self, use: str, id: str | None = None) -> None:
        super().__init__(id=id, classes="pane")
        self._use = use
        self._request: PullRequest | None = None
        self._job: PullJob | None = None
        self.pulled: str | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield ProgressBar(id="bar", show_eta=False)
            yield Static(id="progress", markup=False)
            yield Button("Stop", id="act", compact=True)

    def on_mount(self) -> None:
        self.display = False

    def on_unmount(self) -> None:
        """Nothing runs unseen."""
        self.stop()

    @property
    def running(self) -> bool:
        """Whether bytes may still come."""
        return self._job is not None

    def begin(self, request: PullRequest) -> None:
        """Pull ``request``, unless another one is on its way."""
        if self._job is not None:
            self.notify("One download at a time: esc stops the one that runs.", severity="warning")
            return
        self._request, self.pulled = request, None
        self._follow(request)

    def stop(self) -> bool:
        """Stop what runs; False when nothing does."""
        if self._job is not None:
            self._job.cancel()
        return self._job is not None

    @work(exit_on_error=False, group="download")
    async def _follow(self, request: PullRequest) -> None:
        job = self._job = PullJob(request)
        job.start()
        self.display = True
        self.border_title = Content(f"Download {request.name}:{request.what}")
        while not (state := job.poll()).ended:
            self.show(state)
            await asyncio.sleep(_LOOKS)
        self._job = None
        self.show(state)
        if state.path is not None:
            self.pulled = await asyncio.to_thread(name_of, state.path)
        self.post_message(self.Ended(self.pulled))

    def show(self, state: PullState) -> None:
        """Draw how far it is."""
        bar, said = self.query_one("#bar", ProgressBar), self.query_one("#progress", Static)
        button = self.query_one("#act", Button)
        bar.display = state.total is not None and not state.ended
        bar.update(total=state.total, progress=state.done)
        self.set_class(state.error is not None, "-failed")
        said.set_class(state.path is not None, "good")
        if state.path is not None:
            said.update("It is here, whole and checked.")
            button.label, button.variant = self._use, "primary"
            button.focus()
        elif state.ended:
            stopped = "Stopped. What has arrived stays; the same download resumes from there."
            said.update(state.error or stopped)
            button.label, button.variant = "Go on", "default"
        else:
            said.update(progress_line(state))
            button.label, button.variant = "Stop", "default"

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if self.pulled is not None:
            self.post_message(self.Wanted(self.pulled))
        elif not self.stop() and self._request is not None:
            self.begin(self._request)


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


def name_of(path: Path) -> str:
    """A pulled file as the library calls it."""
    for model in library.models():
        for build in model.builds:
            if model.path(build) == path:
                return f"{model.repo}:{build.label}"
    return str(path)
