"""How a chat is answered: its system message, presets of that, and sampling."""

from collections.abc import Mapping
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.events import DescendantFocus
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from app.chat import presets, sampling_form
from app.chat.sampling_form import FIELDS
from app.config.settings import Preset
from app.tui.app import app_of, services_of
from app.tui.keys import bind
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, Panel, bind_first
from app.tui.textual_patches import Plain, background
from app.tui.widgets.chat_sidebar import TwoClicks
from app.tui.widgets.prompt import Area, Line
from runtimes.request import SamplingParams


class SystemScreen(Panel[dict[str, Any]]):
    """Ends with what changes in the chat: its ``system`` message, and its ``sampling`` where a
    preset was chosen. None when it was left. ``sampling`` is the chat's: a preset that is saved
    here has it."""

    HELP = """
    Instructions that the model gets before the conversation. They apply from the next answer on;
    earlier answers stay. A preset saves them, with the sampling of this chat, under a name.
    """
    CSS_PATH = "answering.tcss"
    BINDINGS = [
        bind_first("ctrl+s", "system.use", "Use"),
        bind_first("f9", "system.save", "Save as preset"),
        bind("delete,ctrl+d", "system.delete", "Delete preset"),
    ]

    HEADING = "System message"

    def __init__(self, system: str | None, sampling: Mapping[str, Any]) -> None:
        super().__init__()
        self._area = Area(system or "", id="text")
        self._presets = TwoClicks(id="presets", markup=False)
        self._before = self._area.text
        self._own = sampling
        self._chosen: Preset | None = None

    def contents(self) -> ComposeResult:
        yield self._area
        yield Label("Presets (tab goes there, enter takes one)", id="presets-title")
        yield self._presets

    def on_mount(self) -> None:
        self._list()
        self._area.move_cursor(self._area.document.end)
        self._area.focus()

    def _list(self) -> None:
        known = presets.all_presets(services_of(self).config)
        self._presets.set_options([Option(describe(preset), id=preset.name) for preset in known])

    @on(OptionList.OptionSelected)
    def _took(self, event: OptionList.OptionSelected) -> None:
        self._chosen = presets.find(services_of(self).config, str(event.option.id))
        self._area.text = self._chosen.system or ""
        self._area.focus()

    def unsaved(self) -> bool:
        return self._area.text != self._before

    def action_use(self) -> None:
        """End with the text, and with the sampling of the preset that was taken last."""
        changes: dict[str, Any] = {"system": self._area.text.strip() or None}
        if self._chosen is not None:
            changes["sampling"] = dict(self._chosen.sampling)
        self.dismiss(changes)

    @background
    async def action_save(self) -> None:
        before = self._chosen.name if self._chosen else ""
        name = await self.app.push_screen_wait(AskScreen("Name of the preset", before))
        if name is None:
            return
        sampling = self._own if self._chosen is None else self._chosen.sampling
        preset = Preset(name, self._area.text.strip() or None, sampling)
        with self.errors_told():
            presets.save(preset)
            self._read_again()
            self.notify(f"The preset {name} is saved.")

    @background
    async def action_delete(self) -> None:
        option = self._presets.highlighted_option if self._presets.has_focus else None
        if option is None:
            self.notify("Go to one of your presets first: tab, then up or down.")
            return
        name = str(option.id)
        question = ConfirmScreen(f"Delete the preset {name}?", "Delete")
        if await self.app.push_screen_wait(question):
            with self.errors_told():
                presets.delete(services_of(self).config, name)
                self._read_again()

    def _read_again(self) -> None:
        """The presets have changed."""
        app_of(self).read_settings()
        self._list()


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
        bind_first("enter,ctrl+s", "sampling.use", "Use"),
        bind_first("alt+l", "sampling.reset", "Reset line"),
        bind_first("alt+r", "sampling.reset_all", "Reset all"),
        bind("up", "sampling.up", action="app.focus_previous", show=False),
        bind("down", "sampling.down", action="app.focus_next", show=False),
    ]
    HEADING = "Sampling of this chat"

    def __init__(self, sampling: Mapping[str, Any]) -> None:
        super().__init__()
        self._given = sampling

    def contents(self) -> ComposeResult:
        self._defaults = services_of(self).config.sampling
        texts = sampling_form.texts_of(sampling_form.from_mapping(self._given, self._defaults))
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
    def form(self) -> tuple[SamplingParams | None, dict[str, str]]:
        texts = {field.name: self.query_one(f"#{field.name}", Input).value for field in FIELDS}
        return sampling_form.read(texts, self._defaults)

    @property
    def _kept(self) -> dict[str, Any] | None:
        """The form, as a chat keeps it; None while a line is wrong."""
        params, _ = self.form
        return None if params is None else sampling_form.to_mapping(params, self._defaults)

    @on(Input.Changed)
    def _check(self) -> None:
        """Say at each line what is wrong with it, or what it may be."""
        _, errors = self.form
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
        return self._kept != self._given

    def action_use(self) -> None:
        if (kept := self._kept) is not None:
            self.dismiss(kept)
            return
        name, error = next(iter(self.form[1].items()))
        self.complain(error)
        self.query_one(f"#{name}").focus()

    def action_reset(self) -> None:
        if isinstance(self.focused, Input) and self.focused.id:
            self._reset([self.focused.id])

    def action_reset_all(self) -> None:
        self._reset([field.name for field in FIELDS])

    def _reset(self, names: list[str]) -> None:
        texts = sampling_form.texts_of(self._defaults.params())
        for name in names:
            self.query_one(f"#{name}", Input).value = texts[name]
