"""Panels that ask for a file: one that goes with the next message, and one to write the chat to."""

import asyncio
from pathlib import Path

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, RadioButton, RadioSet

from app.chat.attachments import Attached, read_attachment, with_attachments
from app.chat.conversation import Conversation
from app.chat.export import FORMATS, ExistsError, export, suggested_path
from app.chat.store.records import Attachment
from app.documents import document_kind
from app.tui.app import services_of
from app.tui.screens.dialogs import ConfirmScreen, Panel, Result
from app.tui.textual_patches import Plain, latest
from app.tui.widgets.form import PathInput
from runtimes.errors import IngotError

_PAUSE_S = 0.2  # of typing, before a file is read


class FilePanel(Panel[Result]):
    """A path, and below it what there is to say of the file."""

    def __init__(self, path: str = "") -> None:
        super().__init__()
        self._line = PathInput(path, placeholder="notes.txt, ~/code/main.py ...")
        self._about = Plain(id="about")

    def contents(self) -> ComposeResult:
        yield self._line
        yield self._about

    def on_mount(self) -> None:
        self._line.focus_line()

    def tell(self, text: str, error: str = "") -> None:
        self.complain(error)
        self._about.update(text)


class AttachScreen(FilePanel[Attachment]):
    """Ends with the file's text. What it takes of the context is shown before."""

    HELP = """
    Type the path of a text file, PDF or Word document (.docx), or pick it below: tab completes,
    down goes to the list. How much of the context the file takes is shown before you attach it.
    """
    HEADING = "Attach a file"
    _looked: tuple[str, Attached] | None = None  # what was read of which path

    @on(Input.Changed)
    def _typed(self) -> None:
        self.tell("")
        if self._line.text and self._line.path.is_file():
            self._read(self._line.text, take=False)

    @on(Input.Submitted)
    def _chosen(self) -> None:
        self._read(self._line.text, take=True)

    @latest
    async def _read(self, text: str, *, take: bool) -> None:
        """Read the file, and ``take`` it; or say how large it is, after a pause."""
        if not take:
            await asyncio.sleep(_PAUSE_S)
            if self._line.text != text:
                return
        if document_kind(text, b""):
            self.tell("reading it ...")  # may take seconds
        try:
            if not take or self._looked is None or self._looked[0] != text:
                self._looked = text, await asyncio.to_thread(read_attachment, text)
            attached = self._looked[1]
            if take:
                self._take(attached)
            else:
                self.tell(await asyncio.to_thread(self._describe, attached))
        except IngotError as error:
            self.tell("", str(error))

    def _describe(self, attached: Attached) -> str:
        one = attached.attachment
        told = f"{len(one.text):,} characters"
        engine = services_of(self).host.engine
        if engine is not None:
            tokens = len(engine.encode(with_attachments("", [one])))
            told += f" · {tokens:,} tokens of a context of {engine.context:,}"
            if tokens >= engine.context:
                told += ": more than fits"
        return f"{told}\n{attached.warning}" if attached.warning else told

    def _take(self, attached: Attached) -> None:
        if not self.is_current:
            return  # left while the file was read
        if attached.warning:
            self.app.notify(attached.warning, severity="warning")
        self.dismiss(attached.attachment)


class _Form(RadioButton):
    """A radio button whose dot says whether it is chosen, not its colour alone."""

    BUTTON_INNER = " "

    def watch_value(self) -> None:
        self.BUTTON_INNER = "●" if self.value else " "
        super().watch_value()


class ExportScreen(FilePanel[Path]):
    """Ends with the file that was written. ``path`` is what to begin with; without it, one after
    the chat's title in the working folder."""

    HELP = """
    The suffix sets the format: `.md` has the shown branch, `.json` every branch with all figures.
    An existing file is replaced only after asking.
    """
    HEADING = "Export this chat"

    def __init__(self, conversation: Conversation, path: str = "") -> None:
        super().__init__(path or str(suggested_path(conversation)))
        self._conversation = conversation

    def contents(self) -> ComposeResult:
        yield self._line
        chosen = Path(self._line.text).suffix.removeprefix(".")
        forms = (_Form(title, chosen == form, id=form) for form, title in FORMATS.items())
        yield RadioSet(*forms, id="forms", compact=True)
        yield self._about

    @on(RadioSet.Changed)
    def _format(self, event: RadioSet.Changed) -> None:
        path, suffix = Path(self._line.text), f".{event.pressed.id}"
        if path.name and path.suffix != suffix:
            self._line.text = str(path.with_suffix(suffix))
        self._line.focus_line()  # where it is taken

    @on(Input.Changed)
    def _typed(self) -> None:
        self.tell("")
        form = Path(self._line.text).suffix.removeprefix(".")
        if form in FORMATS:
            with self.prevent(RadioSet.Changed):
                self.query_one(f"#{form}", RadioButton).value = True

    @on(Input.Submitted)
    @latest
    async def _chosen(self) -> None:
        await self._write(self._line.text, overwrite=False)

    async def _write(self, path: str, *, overwrite: bool) -> None:
        try:
            self.dismiss(
                await asyncio.to_thread(export, self._conversation, path, overwrite=overwrite)
            )
        except ExistsError:
            question = ConfirmScreen(f"{path} is there already. Replace it?", "Replace")
            if await self.app.push_screen_wait(question):
                await self._write(path, overwrite=True)
        except IngotError as error:
            self.tell("", str(error))
