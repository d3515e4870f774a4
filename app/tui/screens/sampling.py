"""How answers are sampled: every parameter a line, checked as it is typed."""

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import DescendantFocus
from textual.widgets import Input, Label, Static

from app.chat import sampling_form
from app.chat.sampling_form import FIELDS, Form
from app.tui.app import services_of
from app.tui.screens.dialogs import Panel


class SamplingScreen(Panel[Mapping[str, Any]]):
    """Ends with what differs from the settings' sampling, as it is kept with a chat; None when it
    was left. ``sampling`` is what the chat has now."""

    HELP = """
    These apply to this chat, from its next answer on. An empty line means the value of your
    settings (`[sampling]` in the settings file). Up and down move between lines.
    """
    CSS_PATH = "sampling.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,ctrl+s", "use", "Use", id="sampling.use", priority=True),
        Binding("ctrl+d", "reset", "Reset line", id="sampling.reset", priority=True),
        Binding("ctrl+r", "reset_all", "Reset all", id="sampling.reset_all", priority=True),
        Binding("up", "app.focus_previous", show=False, id="sampling.up"),
        Binding("down", "app.focus_next", show=False, id="sampling.down"),
        Binding("escape", "dismiss", "Back", id="sampling.leave"),
    ]
    HEADING = "Sampling of this chat"

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        super().__init__()
        self._given = sampling

    def contents(self) -> ComposeResult:
        defaults = services_of(self).config.sampling
        params = sampling_form.from_mapping(self._given, defaults)
        texts = sampling_form.texts_of(params)
        with VerticalScroll(id="lines", can_focus=False):
            for field in FIELDS:
                with Horizontal(classes="line"):
                    yield Label(field.label, classes="name")
                    yield Input(
                        texts[field.name], id=field.name, compact=True, select_on_focus=False
                    )
                    yield Static(id=f"{field.name}-hint", classes="range", markup=False)
        yield Static(id="about", markup=False)

    def on_mount(self) -> None:
        self._check()
        self.query_one(f"#{FIELDS[0].name}").focus()

    @property
    def form(self) -> Form:
        texts = {field.name: self.query_one(f"#{field.name}", Input).value for field in FIELDS}
        return sampling_form.read(texts, services_of(self).config.sampling)

    @on(Input.Changed)
    def _check(self) -> None:
        """Say at each line what is wrong with it, or what it may be."""
        errors = self.form.errors
        for field in FIELDS:
            hint = self.query_one(f"#{field.name}-hint", Static)
            error = errors.get(field.name)
            hint.set_class(error is not None, "error")
            hint.update(f"! {field.range}" if error else field.range)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Say what the parameter does, or what is wrong with it."""
        found = [field for field in FIELDS if field.name == event.widget.id]
        if found:
            told = self.form.errors.get(found[0].name) or f"{found[0].label}: {found[0].help}"
            self.query_one("#about", Static).update(told)

    def action_use(self) -> None:
        form = self.form
        if form.params is not None:
            defaults = services_of(self).config.sampling
            self.dismiss(sampling_form.to_mapping(form.params, defaults))
            return
        wrong = next(iter(form.errors))
        self.query_one("#about", Static).update(form.errors[wrong])
        self.query_one(f"#{wrong}").focus()

    def action_reset(self) -> None:
        if isinstance(self.focused, Input) and self.focused.id:
            self._reset([self.focused.id])

    def action_reset_all(self) -> None:
        self._reset([field.name for field in FIELDS])

    def _reset(self, names: list[str]) -> None:
        texts = sampling_form.texts_of(services_of(self).config.sampling.params())
        for name in names:
            self.query_one(f"#{name}", Input).value = texts[name]
