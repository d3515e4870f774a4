"""The frame around every mode: tabs, model and speed above it, below it the keys that work now."""

from abc import abstractmethod
from itertools import accumulate
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets._footer import FooterKey

from app.chat.host import HostState
from app.tui import modes
from app.tui.app import IngotApp, app_of
from app.tui.keys import offered, shown, told
from app.tui.textual_patches import Plain

_BRAND = "◆ Ingot"
_PAD = 2  # cells around a tab, and beside the brand
_GAP = 2  # cells between two keys of the footer
_ROOMY = 100  # cells, from which on tabs tell their keys and the footer what computes
_STATES = {
    HostState.LOADING: ("loading the model", "$text-warning"),
    HostState.EMPTY: ("no model", "$text-warning"),
    HostState.FAILED: ("the model did not load", "$text-error"),
}


class ModeTab(Plain):
    """A click turns to its mode."""

    def __init__(self, mode: modes.Mode, *, active: bool) -> None:
        super().__init__(classes="-active" if active else "")
        self.mode = mode

    def fit(self, *, keys: bool) -> int:
        """Say the title, and the key if wanted; return the cells that this takes."""
        key = told(self, f"[app.{self.mode.name} {shown(self.mode.key)}]") if keys else ""
        text = Content(self.mode.title)
        if key:
            text = Content.assemble(text, (f" {key}", "$text-muted not bold not underline"))
        self.update(text)
        return text.cell_length + _PAD

    async def on_click(self) -> None:
        await self.app.run_action(f"app.switch_mode('{self.mode.name}')")


class AppHeader(Horizontal):
    """Tabs of all modes; at the right the loaded model, its measured quality, and the chat's
    speed."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode
        self._room = 0  # cells for what is at the right

    def compose(self) -> ComposeResult:
        yield Plain(_BRAND, id="brand")
        for mode in modes.MODES:
            yield ModeTab(mode, active=mode.name == self._mode)
        yield Plain(id="loaded")

    def on_mount(self) -> None:
        app = app_of(self)
        app.engine_changed.subscribe(self, lambda _: self._show())
        self.watch(app, "speed", self._show)
        self.watch(app, "decoding", self._show)

    def on_resize(self, event: events.Resize) -> None:
        width = event.size.width
        tabs = sum(tab.fit(keys=width >= _ROOMY) for tab in self.query(ModeTab))
        self._room = width - tabs - len(_BRAND) - 2 * _PAD
        self._show()

    def _show(self) -> None:
        """Show model, quality and speed; where room is scarce the bits go first, then the quality,
        then the model's name."""
        app = app_of(self)
        host = app.services.host
        speed = (app.speed, "bold $text-primary" if app.decoding else "$text-muted")
        model = _STATES.get(host.state, (host.label, "$text"))
        quality = (host.quality, "$text-muted")
        short = (host.quality.rpartition(" · ")[2], "$text-muted")
        wanted = ((model, quality, speed), (model, short, speed), (model, speed), (speed,), ())
        for parts in wanted:
            there = [Content.styled(*part) for part in parts if part[0]]
            text = Content(" │ ").join(there)
            if text.cell_length <= self._room:
                break
        self.query_one("#loaded", Static).update(text, layout=False)


class AppFooter(Footer):
    """Textual's footer with as many keys as there is room for, those of the app always, and at the
    right what computes."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._shown: tuple[list[Binding], str] = [], ""
        self._due = False

    def compose(self) -> ComposeResult:
        keys, state = self._shown
        for key in keys:
            told = key.key, *self._told(key), key.action
            made = FooterKey(*told, tooltip=key.tooltip, classes="-compact")
            made.set_reactive(FooterKey.compact, True)
            yield made
        yield Plain(state, classes="computes")

    def _fitting(self) -> tuple[list[Binding], str]:
        """The keys that there is room for, the focused widget's first, and what computes."""
        screen = self.screen
        own: list[Binding] = []
        everywhere: list[Binding] = []
        for one in offered(screen):
            if not isinstance(screen, ModeScreen) or screen.useful(one.binding.action):
                (everywhere if isinstance(one.node, IngotApp) else own).append(one.binding)
        state = app_of(self).services.host.details if self.size.width >= _ROOMY else ""
        room = self.size.width - sum(map(self._width, everywhere)) - cell_len(state) - 2
        kept = sum(taken <= room for taken in accumulate(map(self._width, own)))
        return own[:kept] + everywhere, state

    def _told(self, key: Binding) -> tuple[str, str]:
        return self.app.get_key_display(key), key.description

    def _width(self, key: Binding) -> int:
        return cell_len(" ".join(self._told(key))) + _GAP

    def on_mount(self) -> None:
        super().on_mount()
        app_of(self).engine_changed.subscribe(self, lambda _: self._look_again())

    def on_resize(self) -> None:
        self._look_again()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Textual's composes anew each time, whether anything has changed or not."""
        if screen.app.app_focus and self.is_attached and screen is self.screen:
            self._look_again()

    def _look_again(self) -> None:
        """Once the screen is drawn, however much changes until then."""
        if not self._due:
            self._due = self.call_after_refresh(self._again)

    async def _again(self) -> None:
        self._due = False
        if self.is_attached and self._shown != (shown := self._fitting()):
            self._shown = shown
            await self.recompose()


class ModeScreen(modes.Styled[None]):
    """The base screen of a mode: ``contents`` between the header and the footer."""

    MODE: ClassVar[str]

    def compose(self) -> ComposeResult:
        self.begin()
        yield AppHeader(self.MODE)
        yield from self.contents()
        yield AppFooter()

    @abstractmethod
    def contents(self) -> ComposeResult:
        """Compose what the mode shows."""

    def useful(self, action: str) -> bool:
        """Whether the footer should tell of this action now; the key works in either case."""
        return True
