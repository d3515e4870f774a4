"""The system message of a chat, and presets: system message and sampling under a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Label, OptionList, TextArea
from textual.widgets.option_list import Option

from app.chat import presets
from app.config.settings import ConfigError, Preset
from app.tui.app import app_of, services_of
from app.tui.screens.dialogs import AskScreen, ConfirmScreen, Panel


@dataclass(frozen=True, slots=True)
class SystemChoice:
    """What the chat has from now on. ``sampling`` is what a chosen preset changes of the settings'
    one; None when no preset was chosen, and the chat keeps its own."""

    system: str | None
    sampling: Mapping[str, Any] | None = None


class SystemScreen(Panel[SystemChoice]):
    """Ends with what to use, None when it was left. ``sampling`` is the chat's: a preset that is
    saved here has it."""

    HELP = """
    Instructions that the model gets before the conversation. They apply from the next answer on;
    earlier answers stay. A preset saves them, with the sampling of this chat, under a name.
    """
    CSS_PATH = "system.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "use", "Use", id="system.use", priority=True),
        Binding("ctrl+n", "save", "Save as preset", id="system.save", priority=True),
        Binding("delete", "delete", "Delete preset", id="system.delete"),
        Binding("escape", "dismiss", "Back", id="system.leave", priority=True),
    ]
    HEADING = "System message"

    def __init__(self, system: str | None, sampling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._system = system or ""
        self._own = dict(sampling or {})
        self._chosen: Preset | None = None

    def contents(self) -> ComposeResult:
        yield TextArea(self._system, id="text", tab_behavior="focus", soft_wrap=True)
        yield Label("Presets (tab goes there, enter takes one)", id="presets-title")
        yield OptionList(id="presets", markup=False)

    def on_mount(self) -> None:
        self._list()
        text = self.query_one("#text", TextArea)
        text.move_cursor(text.document.end)
        text.focus()

    def _list(self) -> None:
        known = presets.all_presets(services_of(self).config)
        found = self.query_one("#presets", OptionList)
        found.set_options([Option(describe(preset), id=preset.name) for preset in known])

    @on(OptionList.OptionSelected)
    def _took(self, event: OptionList.OptionSelected) -> None:
        self._chosen = presets.find(services_of(self).config, str(event.option.id))
        text = self.query_one("#text", TextArea)
        text.text = self._chosen.system or ""
        text.focus()

    def action_use(self) -> None:
        """End with the text, and with the sampling of the preset that was taken last."""
        text = self.query_one("#text", TextArea).text.strip()
        sampling = None if self._chosen is None else dict(self._chosen.sampling)
        self.dismiss(SystemChoice(text or None, sampling))

    @work(exit_on_error=False, group="dialog")
    async def action_save(self) -> None:
        before = self._chosen.name if self._chosen else ""
        name = await self.app.push_screen_wait(AskScreen("Name of the preset", before))
        if name is None:
            return
        sampling = self._own if self._chosen is None else self._chosen.sampling
        text = self.query_one("#text", TextArea).text.strip()
        try:
            presets.save(Preset(name, text or None, sampling))
        except ConfigError as error:
            app_of(self).warn(str(error))
            return
        app_of(self).read_settings()
        self._list()
        self.notify(f"The preset {name} is saved.", markup=False)

    @work(exit_on_error=False, group="dialog")
    async def action_delete(self) -> None:
        found = self.query_one("#presets", OptionList)
        option = found.highlighted_option if found.has_focus else None
        if option is None:
            self.notify("Go to one of your presets first: tab, then up or down.")
            return
        name = str(option.id)
        question = ConfirmScreen(f"Delete the preset {name}?", "Delete")
        if not await self.app.push_screen_wait(question):
            return
        try:
            presets.delete(services_of(self).config, name)
        except ConfigError as error:
            app_of(self).warn(str(error))
        app_of(self).read_settings()
        self._list()


def describe(preset: Preset) -> str:
    """A preset in one line."""
    changes = ", ".join(f"{key} {value}" for key, value in preset.sampling.items())
    name = f"{preset.name} ({changes})" if changes else preset.name
    text = " ".join((preset.system or "no system message").split())
    return f"{name}: {text}"
