"""How a model file is to be loaded: context, threads, device, cache, chat template."""

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input, Static

from app.chat import load_settings
from app.chat.load_settings import LoadSettings
from app.models.catalog import ModelEntry
from app.models.planning import LoadChoice, choose
from app.options import PlanOptions
from app.tui.screens.dialogs import Panel
from app.tui.widgets.form import Field, FieldHelp, Form, text_field
from quantize.disk import human
from runtimes.errors import IngotError
from runtimes.machine.cpu import available_cores
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import DEFAULT_CONTEXT

_LABELS = {
    "context": ("Context", "tokens of a prompt and its answer at most; more take more memory"),
    "threads": ("Threads", "of the processor"),
    "device": ("Device", "cpu, or one that `ingot doctor` lists; several with commas between"),
    "gpu_layers": ("GPU layers", "on the GPU; -1 is all of them, 0 none"),
    "kv_type": ("KV cache", "f16, q8_0 or q4_0: smaller types take less memory, and lose a little"),
    "template": ("Template", "a file of Jinja2, or chatml, llama3, gemma, instead of the model's"),
}


class LoadForm(Form):
    """The settings that the runtime of a file has. Empty is as planned."""

    def __init__(self, choice: LoadChoice, said: LoadSettings) -> None:
        super().__init__()
        self._choice, self._said = choice, said

    def compose(self) -> ComposeResult:
        for name in load_settings.known_to(self._choice.file):
            label, about = _LABELS[name]
            field = text_field(name, label, self._planned(name), about)
            value = getattr(self._said, name)
            assert isinstance(field.entry, Input)
            field.entry.value = "" if value is None else str(value)
            yield field
        yield FieldHelp()
        yield Static(id="load-memory", markup=False)

    def on_mount(self) -> None:
        self.query(Input).first().focus()
        self.look_later(0.01)

    def _planned(self, name: str) -> str:
        settings, file = self._choice.settings, self._choice.file
        match name:
            case "context":
                value = str(settings.context or min(DEFAULT_CONTEXT, file.context_length))
            case "threads":
                value = str(settings.threads or available_cores())
            case "gpu_layers":
                value = "all" if settings.gpu_layers < 0 else str(settings.gpu_layers)
            case "device" | "kv_type":
                value = getattr(settings, name)
            case _:
                return "the model's own" if file.chat_template else "none: it continues text"
        return f"{value}, as {'planned' if self._choice.planned else 'usual'}"

    def read(self) -> LoadSettings | None:
        """What is typed; None, and the errors under their fields, where something is wrong."""
        texts = {str(f.entry.id): self.text_of(str(f.entry.id)) for f in self.query(Field)}
        said, errors = load_settings.read(texts, self._choice.file)
        self.refuse_all(errors)
        return None if errors else said

    @on(Input.Changed)
    def _typed(self) -> None:
        self.look_later()

    async def look(self) -> None:
        """What it would take."""
        said = self.read()
        shown = self.query_one("#load-memory", Static)
        if said is None:
            shown.update("")
            return
        try:
            needs = load_settings.memory(self._choice, said)
        except IngotError as error:
            shown.update(str(error))
            return
        free = memory_now()[1]
        fits = "fits" if needs <= free else "does not fit"
        shown.update(f"Memory: needs {human(needs)}, {human(free)} are free: {fits}")
        shown.set_class(needs > free, "bad")


class LoadScreen(Panel[bool]):
    """Ends with True once the settings are remembered, and the file is to be loaded."""

    HELP = """
    How this file is loaded, from now on: an empty line is as `ingot plan` has chosen, or the usual.
    What the command line gives comes before it.
    """
    CSS_PATH: ClassVar[list[str]] = ["../widgets/form.tcss", "load_settings.tcss"]  # type: ignore[assignment]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "use", "Load", id="load.use", priority=True),
        Binding("alt+r", "reset", "As planned", id="load.reset", priority=True),
    ]

    def __init__(self, entry: ModelEntry) -> None:
        super().__init__(f"Load {entry.label}")
        self._entry = entry

    def contents(self) -> ComposeResult:
        yield Static("reading the file", id="load-state", markup=False)
        with Horizontal(id="load-buttons"):
            yield Button("As planned", id="load-reset", action="screen.reset", compact=True)
            yield Button(
                "Load", variant="primary", id="load-use", action="screen.use", compact=True
            )

    def on_mount(self) -> None:
        self._look_at_it()

    @work(thread=True, exit_on_error=False)
    def _look_at_it(self) -> None:
        try:
            entry = self._entry
            choice = choose(entry.model, entry.options, PlanOptions(), "chat", slots=1)
            said = load_settings.remembered(choice.file.path)
        except IngotError as error:
            self.call_later(self.query_one("#load-state", Static).update, str(error))
            return
        self.call_later(self._show, choice, said)

    async def _show(self, choice: LoadChoice, said: LoadSettings) -> None:
        self._path = choice.file.path
        self.query_one("#load-state").display = False
        await self.query_one(".box").mount(LoadForm(choice, said), before="#load-buttons")

    def action_use(self) -> None:
        for form in self.query(LoadForm):
            said = form.read()
            if said is None:
                form.action_next_error()
            else:
                load_settings.remember(self._path, said)
                self.dismiss(True)

    def action_reset(self) -> None:
        for line in self.query(Input):
            line.value = ""
