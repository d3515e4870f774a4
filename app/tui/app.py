"""The terminal app itself: modes, loading models, leaving, and what holds on every screen."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

from textual import events, work
from textual.app import App, ScreenStackError, UnknownModeError
from textual.binding import Binding
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.reactive import reactive
from textual.screen import Screen
from textual.signal import Signal
from textual.widgets import Static

from app.chat.host import HostState, LoadCancelledError
from app.config.files import load as load_config
from app.config.files import set_value
from app.config.settings import ConfigError
from app.documents import stop_reading
from app.exitcodes import ExitCode
from app.options import ModelOptions, PlanOptions
from app.tui import keys, modes, terminal, theme
from app.tui.keys import key, problems
from app.tui.services import Services, Start, open_services
from app.tui.textual_patches import ControlFilter, InOrder, Sheet, act, one_types
from runtimes import own
from runtimes.errors import IngotError
from runtimes.paths import state_dir

log = logging.getLogger(__name__)

_now = time.monotonic
_WARNINGS = 3  # at the start; a screen of 24 lines holds one more
_LATER = ("app.tui.widgets.message_view", "app.tui.screens.models", "app.tui.help")
# Objects between two looks for garbage: at Python's 700 that takes 2% of a core while an answer
# comes, since each of its blocks is made of thousands that stay.
_YOUNG = 10_000
_AGAIN_S = 2.0  # a second ctrl+c within this time quits
_WIDTH, _HEIGHT = 60, 16  # the least in which a screen has room


class TooSmall(Static):
    """A cover that says what is needed; the screen keeps running below it."""


class IngotApp(App[None]):
    """``services`` are opened and closed by the caller; the engine's process ends with the app."""

    CSS_PATH = Path(__file__).with_name("app.tcss")  # also for a subclass elsewhere
    TITLE = "Ingot"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        mode.name: mode.open for mode in modes.MODES
    }
    DEFAULT_MODE = modes.CHAT.name
    BINDINGS = [
        key("f1", "app.help", "Help", "for what has the focus", show=True),
        *(
            key(mode.key, f"app.{mode.name}", mode.title, action=f"app.switch_mode('{mode.name}')")
            for mode in modes.MODES
        ),
        key("ctrl+p", "app.palette", "Commands", action="command_palette", show=True),
        key("f12", "app.theme", "Theme", action="change_theme", priority=False),
        key("ctrl+c", "app.interrupt", "Stop", "what runs; twice quits"),
        key("ctrl+q", "app.quit", "Quit"),
    ]

    # Of the chat's answer, as the header shows them; nothing else is drawn again.
    speed: reactive[str] = reactive("", repaint=False)
    decoding: reactive[bool] = reactive(False, repaint=False)

    def __init__(self, services: Services, driver_class: type[Driver] | None = None) -> None:
        self.look: tuple[str, dict[str, str]] | None = None  # what screens are styled by
        super().__init__(driver_class)
        self.stylesheet = Sheet(variables=self.get_css_variables())
        self.services = services
        # Published when a model begins to load, is loaded, or could not be; the host says the rest.
        self.engine_changed: Signal[HostState] = Signal(self, "engine_changed")
        for each in theme.OWN:
            self.register_theme(each)
        self.no_color = theme.no_color()
        self._colourless = theme.Restyled(theme.colourless)
        self._on_black = theme.Restyled(theme.on_black)
        self._shown = ControlFilter()
        self._starting = 0  # parts of the start that have not ended
        self.named: list[str] = []  # as MODEL, the latest last, whether they could be loaded or not
        self._interrupted = float("-inf")
        self._pressed = self._interrupted_at = 0  # keys and pastes, all and until ctrl+c
        self._in_order = InOrder(self)

    def on_load(self) -> None:
        """Keys are mapped before any screen tells of them, and the theme is there before the style
        sheets are read: another one means that they are read again."""
        config = self.services.config
        self.set_keymap(keys.checked(config.keymap)[0])
        known = config.theme in self.available_themes
        self.theme = config.theme if config.theme and known else theme.INGOT.name

    def on_mount(self) -> None:
        config = self.services.config
        few = not self.is_headless and self.console.color_system == "standard"
        if few and not config.theme:
            self.theme = theme.INGOT_TERMINAL.name
        wrong = [*self.services.warnings, *problems(config)]
        for one in wrong[:_WARNINGS]:
            self.warn(one)
        if (more := len(wrong) - _WARNINGS) > 0:
            self.warn(f"{more} more settings are wrong: `ingot config` lists them all")
        self.screen_change_signal.subscribe(self, lambda _: self._check_room())
        if not self.is_headless:
            self._catch_signals()
        self.set_interval(1.0, self.services.monitor.note)
        if self.services.start.model is not None:
            self.services.host.expect()  # the first picture says so

    def _end_batch(self) -> None:
        """Textual's; what was laid out meanwhile is drawn, see ``Styled``."""
        super()._end_batch()
        # There is no screen while the app starts or ends.
        with contextlib.suppress(ScreenStackError, UnknownModeError):
            if not self._batch_count and self.screen._compositor._dirty_regions:
                self.screen.call_later(self.screen._compositor_refresh)

    def on_ready(self) -> None:
        self.call_after_refresh(self._begin)

    async def _begin(self) -> None:
        """Once the first picture is drawn: what takes time away from it."""
        start = self.services.start
        if not gc.isenabled():  # the command has seen to that
            self._starting = 2 if start.model is not None else 1
            gc.freeze()
            gc.set_threshold(_YOUNG, 20)
            gc.enable()
        if start.model is not None:
            self.load_model(start.model, start.options, start.settings)
        else:
            await self.run_action("screen.models")
        self._import_later()

    def get_key_display(self, binding: Binding) -> str:
        return keys.shown(binding.key.partition(",")[0])

    def notify(self, message: str, **options: Any) -> None:
        """Textual's, with keys as they are mapped. A message is text, never markup."""
        super().notify(keys.told(self, message), **options | {"markup": False})

    def ended(self, text: str, seconds: float) -> None:
        """Call the user who looks elsewhere: work that took so long has ended. Only terminals that
        report their focus are known to be out of sight."""
        config, driver = self.services.config, self._driver
        if config.notify == "off" or self.app_focus or driver is None:
            return
        if seconds >= config.notify_after:
            driver.write(terminal.notice(f"Ingot: {text}", desktop=config.notify == "desktop"))
            driver.flush()

    def warn(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=10)

    @work(thread=True, exit_on_error=False, group="modules")
    def _import_later(self) -> None:
        """Import what is not shown yet, so that the first message or key finds it there."""
        for module in (*_LATER, *(mode.module for mode in modes.MODES)):
            import_module(own(module))
        self.call_later(self._started)

    def _started(self) -> None:
        """The modules or the model are there, and stay: to look through them for garbage again and
        again would hold up keys and pictures, each time for a tenth of a second."""
        if self._starting:
            self._starting -= 1
            gc.freeze()

    # The engine

    def load_model(
        self,
        model: str,
        options: ModelOptions | None = None,
        settings: PlanOptions | None = None,
    ) -> None:
        """Replace the loaded model, in a thread; ``engine_changed`` tells how it goes. An error is
        shown, and is also the host's."""
        if Path(model).exists() and model not in self.named:
            self.named.append(model)
        self.engine_changed.publish(HostState.LOADING)
        self._load(model, options or ModelOptions(), settings or PlanOptions())

    @work(thread=True, exit_on_error=False, group="load")
    def _load(self, model: str, options: ModelOptions, settings: PlanOptions) -> None:
        error = None
        try:
            self.services.host.load(model, options, settings)
        except LoadCancelledError:  # whoever ended it knows
            pass
        except IngotError as failed:
            error = str(failed)
        except Exception as failed:
            log.exception("loading %s", model)
            error = f"{type(failed).__name__}: {failed}"
        self.call_later(self._loaded, error)

    def _loaded(self, error: str | None) -> None:
        self._started()
        host = self.services.host
        self.engine_changed.publish(host.state)
        if host.engine is not None and host.plain and not host.raw:
            self.warn(
                f"{host.label} has no chat template: it does not answer, it continues what you"
                " write. --chat-template gives it one."
            )
        if error is not None:
            title = "The model could not be loaded"
            self.notify(error, title=title, severity="error", timeout=15)

    # Leaving

    def action_interrupt(self) -> None:
        """The first time stop what runs, else put away what was typed; the second time, within two
        seconds and with no other key between, quit."""
        now = _now()
        if now - self._interrupted < _AGAIN_S and self._pressed - self._interrupted_at <= 1:
            self._quit()
            return
        self._interrupted, self._interrupted_at = now, self._pressed
        if any(screen.interrupt() for screen in self._interruptible()):
            done = "Stopped."
        elif isinstance(self.screen, modes.Styled) and self.screen.put_away():
            done = "Put away: [chat.older up] brings it back."
        else:
            done = "Nothing runs."
        self.notify(f"{done} Once more quits.", timeout=_AGAIN_S)

    async def on_event(self, event: events.Event) -> None:
        """Count what is typed: ctrl+c means less when something came between. Nothing overtakes
        what was typed before it, and what comes behind a key goes where that key leads."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            self._pressed += 1
            await self._in_order.wait(event)
        await super().on_event(event)

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        """Textual's; and where one does not type, each key that is bound acts at once."""
        return await super()._check_bindings(key, priority) or (
            priority and not one_types(self) and await act(self, key)
        )

    async def action_quit(self) -> None:
        """Leave; where work would end, after asking."""
        self._quit()

    def _quit(self) -> None:
        from app.tui.screens.dialogs import ConfirmScreen

        screens = [screen for mode in modes.MODES for screen in self._occupied(mode.name)]
        busy = [(screen, why) for screen in screens if (why := screen.leaving())]
        if not busy or isinstance(self.screen, ConfirmScreen):  # who asks twice means it
            self.exit()
            return
        question = busy[0][0].ask_leaving() if len(busy) == 1 else None
        if question is None:
            question = ConfirmScreen(f"{' '.join(why for _, why in busy)} Quit?", "Quit")
        self.push_screen(question, lambda yes: self.exit() if yes else None)

    def _interruptible(self) -> Iterator[modes.Styled[Any]]:
        """Screens of the mode that is shown, the topmost first, then those of the chat."""
        for name in dict.fromkeys((self.current_mode, modes.CHAT.name)):
            yield from reversed(self._occupied(name))

    def _occupied(self, mode: str) -> list[modes.Styled[Any]]:
        """Screens of a mode that may be at work, the base first; none before it was shown."""
        try:
            stack = self.get_screen_stack(mode)
        except KeyError:
            return []
        return [one for one in stack if isinstance(one, modes.Styled) and one.is_mounted]

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        if sys.platform != "win32":  # there Textual's driver takes ctrl+c as a key
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self.exit, None, 128 + number)
            loop.add_signal_handler(signal.SIGINT, self.action_interrupt)

    async def on_unmount(self) -> None:
        """End the engine's process before anything waits for the threads that ask it. The screens
        have gone by now, and have kept what they had."""
        stop_reading()
        with ThreadPoolExecutor(1) as own:
            await asyncio.get_running_loop().run_in_executor(own, self.services.host.close)

    # What holds on every screen

    def action_help(self) -> None:
        """Help for the widget that has the focus; once more takes it away."""
        from app.tui.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
        else:
            self.push_screen(HelpScreen(self.screen))

    def action_command_palette(self) -> None:
        from app.tui.help import Commands, Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(providers=[Commands]))

    async def action_in_chat(self, action: str) -> None:
        """Turn to the chat and run one of its actions."""
        await self.switch_mode(modes.CHAT.name)
        await self.run_action(action)

    def action_use_theme(self, name: str) -> None:
        self.theme = name
        self.remember("theme", name)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, but NO_COLOR means none at all, and only when it is not empty; and the one
        that shows control characters."""
        if self.no_color:
            return [self._shown, self._colourless]
        theirs = super().get_line_filters()
        kept = [one for one in theirs if not isinstance(one, Monochrome | NoColor)]
        kept.append(self._shown)
        return [*kept, self._on_black] if self.theme == theme.INGOT_TERMINAL.name else kept

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.tokens()

    def get_css_variables(self) -> dict[str, str]:
        self.theme_variables = theme.legible(super().get_css_variables())
        return self.theme_variables

    def refresh_css(self, animate: bool = True) -> None:
        """Textual's, where there is something to do: it restyles and lays out the screen that is
        shown also at the start, and before each mode is shown for the first time."""
        look = (self.theme, self.get_css_variables())
        shown = [screen for screen in self.screen_stack if screen.is_mounted]
        if look != self.look or any(getattr(one, "look", None) != look for one in shown):
            self.look = look
            super().refresh_css(animate)
            for one in shown:
                if isinstance(one, modes.Styled):
                    one.look = look

    def _load_screen_css(self, screen: Screen[Any]) -> None:
        """Textual's, which would also style anew what is shown: a sheet is its screen's own."""
        for path in screen.css_path:
            if not self.stylesheet.has_source(str(path)):
                self.stylesheet.read(path)
                self.stylesheet.reparse()

    def action_change_theme(self) -> None:
        """Show the themes, and keep the one that is picked."""
        from app.tui.screens.dialogs import ThemeScreen

        screen = ThemeScreen(sorted(self.available_themes), self.theme)
        self.push_screen(screen, lambda name: self.action_use_theme(name) if name else None)

    def remember(self, key: str, value: Any) -> None:
        """Change a setting, now and in the user's file."""
        try:
            set_value(key, value)
        except ConfigError as error:
            self.warn(str(error))
        self.read_settings()

    def read_settings(self) -> None:
        self.services.config = load_config().config

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._check_room)  # once Textual knows the size, too

    def _check_room(self) -> None:
        """Cover the screen, or uncover it, by the terminal's size."""
        covers, (width, height) = self.screen.query(TooSmall), self.size
        said = (
            f"This terminal has {width}x{height}.\nIngot needs {_WIDTH}x{_HEIGHT}: make it larger."
        )
        if width >= _WIDTH and height >= _HEIGHT:
            covers.remove()
        elif covers:
            covers.first().update(said)
        else:
            self.screen.mount(TooSmall(said))


def app_of(node: DOMNode) -> IngotApp:
    """The app of a screen or widget, typed."""
    return cast(IngotApp, node.app)


def services_of(node: DOMNode) -> Services:
    """The services of a screen's or widget's app, typed."""
    return app_of(node).services


def run(start: Start, *, mouse: bool = True) -> int:
    """Draw the app until the user leaves; the exit code. Raises what ``open_services`` does."""
    log_file = state_dir() / "chat.log"
    with terminal.stderr_to(log_file), open_services(start) as services:
        app = IngotApp(services, driver_class=terminal.driver())
        app.run(mouse=mouse and services.config.mouse)
    if app.return_code == 1:  # nobody but Textual gives this code: a defect ended the app
        sys.stderr.write(f"ingot: internal error; {log_file} says where\n")
        return int(ExitCode.INTERNAL)
    return app.return_code or 0
