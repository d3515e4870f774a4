"""How a chat is answered: its system message, presets of that, and sampling."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.events import DescendantFocus
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from app.chat import presets, sampling_form
from app.chat.sampling_form import FIELDS, SamplingTexts
from app.config.settings import ConfigError, Preset
from app.tui.app import app_of, services_of
from app.tui.keys import bind
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, Panel
from app.tui.textual_patches import Plain, background
from app.tui.widgets.chat_sidebar import TwoClicks
from app.tui.widgets.prompt import Area, Line


@dataclass(frozen=True, slots=True)
class SystemChoice:
    """A choice of the user for the chat from now on. ``sampling`` is what a chosen preset changes
    of the settings' one; None when no preset was chosen, and the chat keeps its own."""

    system: str | None
    sampling: Mapping[str, Any] | None = None


class SystemScreen(Panel[SystemChoice]):
    """Ends with what to use, None when it was left. ``sampling`` is the chat's: a preset that is
    saved here has it."""

    HELP = """
    Instructions that the model gets before the conversation. They apply from the next answer on;
    earlier answers stay. A preset saves them, with the sampling of this chat, under a name.
    """
    CSS_PATH = "answering.tcss"
    BINDINGS = [
        bind("ctrl+s", "system.use", "Use", priority=True),
        bind("f9", "system.save", "Save as preset", priority=True),
        bind("delete,ctrl+d", "system.delete", "Delete preset"),
    ]

    HEADING = "System message"

    def __init__(self, system: str | None, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._area = Area(system or "", id="text", tab_behavior="focus", soft_wrap=True)
        self._before = system or ""
        self._own = dict(sampling or {})
        self._chosen: Preset | None = None

    def contents(self) -> ComposeResult:
        yield self._area
        yield Label("Presets (tab goes there, enter takes one)", id="presets-title")
        yield TwoClicks(id="presets", markup=False)

    def on_mount(self) -> None:
        self._list()
        self._area.move_cursor(self._area.document.end)
        self._area.focus()

    def _list(self) -> None:
        known = presets.all_presets(services_of(self).config)
        found = self.query_one("#presets", OptionList)
        found.set_options([Option(describe(preset), id=preset.name) for preset in known])

    @on(OptionList.OptionSelected)
    def _took(self, event: OptionList.OptionSelected) -> None:
        self._chosen = presets.find(services_of(self).config, str(event.option.id))
        self._area.text = self._chosen.system or ""
        self._area.focus()

    def unsaved(self) -> bool:
        return self._area.text != self._before

    def action_use(self) -> None:
        """End with the text, and with the sampling of the preset that was taken last."""
        sampling = None if self._chosen is None else dict(self._chosen.sampling)
        self.dismiss(SystemChoice(self._area.text.strip() or None, sampling))

    @background
    async def action_save(self) -> None:
        before = self._chosen.name if self._chosen else ""
        name = await self.app.push_screen_wait(AskScreen("Name of the preset", before))
        if name is None:
            return
        sampling = self._own if self._chosen is None else self._chosen.sampling
        preset = Preset(name, self._area.text.strip() or None, sampling)
        if self._changed(lambda: presets.save(preset)):
            self.notify(f"The preset {name} is saved.")

    @background
    async def action_delete(self) -> None:
        found = self.query_one("#presets", OptionList)
        option = found.highlighted_option if found.has_focus else None
        if option is None:
            self.notify("Go to one of your presets first: tab, then up or down.")
            return
        name = str(option.id)
        question = ConfirmScreen(f"Delete the preset {name}?", "Delete")
        if await self.app.push_screen_wait(question):
            self._changed(lambda: presets.delete(services_of(self).config, name))

    def _changed(self, change: Callable[[], object]) -> bool:
        """Change the presets, and list them anew; False, and a warning, when it does not go."""
        try:
            change()
        except ConfigError as error:
            app_of(self).warn(str(error))
            return False
        app_of(self).read_settings()
        self._list()
        return True


def describe(preset: Preset) -> str:
    """A preset in one line."""
    changes = ", ".join(f"{key} {value}" for key, value in preset.sampling.items())
    name = f"{preset.name} ({changes})" if changes else preset.name
    text = " ".join((preset.system or "no system message").split())
    return f"{name}: {text}"


class SamplingScreen(Panel[Mapping[str, Any]]):
    """Ends with what differs from the settings' sampling, as it is kept with a chat; None when it
    was left. ``sampling`` is what the chat has now."""

    HELP = """
    These apply to this chat, from its next answer on. An empty line means the value of your
    settings (`[sampling]` in the settings file). Up and down move between lines.
    """
    CSS_PATH = "answering.tcss"
    BINDINGS = [
        bind("enter,ctrl+s", "sampling.use", "Use", priority=True),
        bind("alt+l", "sampling.reset", "Reset line", priority=True),
        bind("alt+r", "sampling.reset_all", "Reset all", priority=True),
        bind("up", "sampling.up", action="app.focus_previous", show=False),
        bind("down", "sampling.down", action="app.focus_next", show=False),
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
                    yield Line(texts[field.name], id=field.name, select_on_focus=False)
                    yield Plain(id=f"{field.name}-hint", classes="range")
        yield Plain(id="about")

    def on_mount(self) -> None:
        self._check()
        self.query_one(f"#{FIELDS[0].name}").focus()

    @property
    def form(self) -> SamplingTexts:
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
        if not errors:
            self.complain()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Say what the parameter does."""
        found = [field for field in FIELDS if field.name == event.widget.id]
        if found:
            self.query_one("#about", Static).update(f"{found[0].label}: {found[0].help}")

    def unsaved(self) -> bool:
        form = self.form
        defaults = services_of(self).config.sampling
        now = None if form.params is None else sampling_form.to_mapping(form.params, defaults)
        return now != dict(self._given)

    def action_use(self) -> None:
        form = self.form
        if form.params is not None:
            defaults = services_of(self).config.sampling
            self.dismiss(sampling_form.to_mapping(form.params, defaults))
            return
        wrong = next(iter(form.errors))
        self.complain(form.errors[wrong])
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
