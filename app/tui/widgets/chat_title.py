"""What a chat is about, in a line above its messages."""

from textual.widgets import Static

from app.tui.widgets.transcript import Transcript


class ChatTitle(Static):
    """Empty while the question that the chat is named after can be read right below it. Its line
    stays, so that nothing moves when that is scrolled away."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__(id="chat-title", markup=False)
        self._transcript = transcript
        self._title = ""
        self.text = ""  # that is shown

    def on_mount(self) -> None:
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._say(), True)

    def show(self, title: str) -> None:
        """The chat's ``title``."""
        self._title = title
        self.display = bool(self._transcript.entries)
        self._say()

    def _say(self) -> None:
        text = "" if self._doubles() else self._title
        if text != self.text:
            self.text = text
            self.update(text, layout=False)

    def _doubles(self) -> bool:
        """Whether the first message begins with the same words, and its first line is in view."""
        entries, area = self._transcript.entries, self._transcript.region
        if not entries:
            return False
        question = entries[0].message
        view = self._transcript.view_of(question.id)
        said = " ".join(question.text.split())
        if view is None or not said.startswith(self._title.removesuffix("…")):
            return False
        return not view.size or area.contains(area.x, view.region.y)  # or not laid out yet
