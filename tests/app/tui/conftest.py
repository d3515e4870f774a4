"""What the tests of the terminal app share: an own home, real services, waiting, pictures."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import textual
from textual import constants
from textual.app import App
from textual.command import CommandPalette
from textual.notifications import Notification
from textual.screen import Screen
from textual.widgets import TextArea

from app.chat.host import EngineHost
from app.chat.store.store import ChatStore
from app.config.settings import Config, Sampling
from app.monitor.monitor import Monitor
from app.tui.app import IngotApp
from app.tui.screens import chat_frame
from app.tui.services import Services, Start, open_services
from app.tui.widgets.table import Table
from tests.app import endless
from tests.app.tui import parsed, settling
from tests.app.tui.held import HeldHost
from tests.support import wait_until

# The pictures were made by this version; another one draws other details.
TEXTUAL = "8.2.8"
SIZES = [(80, 24), (120, 40)]
SHORT = Sampling(max_tokens=24, temperature=0.0)


def cells_of(table: Table[Any], record: Any) -> list[str]:
    """What the columns of a table say of a record, without the looks of it."""
    made = [column.text(record) for column in table.columns]
    return [cell[0] if isinstance(cell, tuple) else str(cell) for cell in made]


@pytest.fixture
def animations() -> str:
    """A third of a second for each key that scrolls: where that matters there are others."""
    return "none"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, animations: str) -> None:
    """After a key or a pause the app is at rest, and what it has told is there to be looked at, on
    a busy machine too; and it has colours."""
    monkeypatch.setattr(constants, "TEXTUAL_ANIMATIONS", animations)
    settling.patch(monkeypatch)
    monkeypatch.delenv("NO_COLOR", raising=False)
    parsed.patch(monkeypatch)
    monkeypatch.setattr(Notification, "has_expired", False)


# Seconds until the app looks again, or acts after a key: a tenth to half of what users have.
_SOON = {
    "screens.chat_frame._PAUSE_S": 0.05,
    "screens.chat_frame._KEEP_S": 0.05,
    "screens.compare._LOOKS": 0.05,
    "screens.compare_prompts._LOOKS": 0.05,
    "screens.quantize._TICK_S": 0.05,
    "screens.batch._TICK_S": 0.1,
    "screens.batch_panels._SETTLE_S": 0.03,
    "screens.find._LOOKS": 0.03,
    "screens.find._TYPED_S": 0.1,
    "screens.files._PAUSE_S": 0.05,
    "widgets.form._SETTLE_S": 0.05,
    "widgets.quantize_form._AGAIN_S": 0.2,
    "widgets.repo_view._MOVED_S": 0.05,
}


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in _SOON.items():
            patch.setattr(f"app.tui.{name}", seconds)
        yield


@pytest.fixture
def services(home: Path) -> Iterator[Any]:
    """Services without a model."""
    with open_services(Start()) as opened:
        yield opened


@pytest.fixture
def app(services: Any) -> IngotApp:
    """The app with them."""
    return IngotApp(services)


@pytest.fixture
def pictures_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between two pictures of an answer."""
    if "home" in request.fixturenames:
        for bound in ("_MOST_OFTEN_S", "_LEAST_OFTEN_S"):
            monkeypatch.setattr(chat_frame, bound, 0.01)


@pytest.fixture
def utc() -> Iterator[None]:
    """Times of day are those of Greenwich, for this test alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def snap(snap_compare: Any) -> Any:
    """``snap_compare`` with cursors that do not blink, skipped on another Textual than the
    pictures' one."""
    if textual.__version__ != TEXTUAL:
        pytest.skip(f"the pictures are of Textual {TEXTUAL}, this is {textual.__version__}")

    def compare(app: App[Any], run_before: Any = None, **options: Any) -> bool:
        async def prepare(pilot: Any) -> None:
            if run_before is not None:
                await run_before(pilot)
            for widget in app.screen.walk_children():
                if hasattr(widget, "cursor_blink"):
                    widget.cursor_blink = False
                if isinstance(widget, TextArea):
                    # Its lines may be kept as they were drawn without the cursor.
                    widget._line_cache.clear()
                    widget.refresh()
            await pilot.pause()

        return bool(snap_compare(app, run_before=prepare, **options))

    return compare


class Bare(IngotApp):
    """The app around an empty screen, for panels that stand alone."""

    class Empty(Screen[None]):
        pass

    MODES: ClassVar[dict[str, Any]] = {"chat": Empty}
    ended_with: Any = None

    def show(self, panel: Screen[Any]) -> None:
        """Push a panel; what it ends with is ``ended_with`` then."""

        def ended(result: Any) -> None:
            self.ended_with = result

        self.push_screen(panel, ended)


@pytest.fixture
def bare(services: Any) -> Bare:
    """See ``Bare``."""
    return Bare(services)


@pytest.fixture
def chat_app(home: Path, gguf_file: Path) -> Iterator[IngotApp]:
    """The whole app with Pebble, which it loads when it runs."""
    with open_services(Start(str(gguf_file))) as opened:
        yield IngotApp(opened)


class KeptHost(EngineHost):
    """Stays loaded when an app ends."""

    def close(self) -> None:
        pass

    def load(self, model: str, *options: Any) -> Any:
        return self.choice if self.choice else super().load(model, *options)


@pytest.fixture(scope="session")
def host(gguf_file: Path) -> Iterator[EngineHost]:
    """Pebble, loaded once for all tests that share it."""
    kept = KeptHost()
    kept.load(str(gguf_file))
    yield kept
    EngineHost.close(kept)


@pytest.fixture
def make(home: Path, host: EngineHost) -> Iterator[Callable[..., IngotApp]]:
    """Makes an app around the loaded model and one store."""
    with ChatStore.open() as store:

        def made(sampling: Sampling = SHORT, host: EngineHost = host, **start: Any) -> IngotApp:
            config = Config(sampling=sampling)
            return IngotApp(
                Services(config, store, host, Monitor(host), Start(str(host.model), **start))
            )

        yield made


@pytest.fixture
def held(gguf_file: Path) -> Iterator[HeldHost]:
    """Pebble, and its answers wait for the test."""
    host = HeldHost(gguf_file)
    yield host
    host.close()


@pytest.fixture
def endless_app(
    home: Path, endless_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IngotApp]:
    """The same, and its answers take minutes."""
    for name, value in endless.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with open_services(Start(str(endless_gguf))) as opened:
        yield IngotApp(opened)


def is_ready(app: IngotApp) -> bool:
    """Whether the model is loaded, and the app told of it."""
    at_work = any(one.is_running for one in app.workers if one.group == "load")
    return app.services.host.engine is not None and not at_work


async def searched(app: App[Any]) -> None:
    """Wait until the palette has found all that there is for what was typed."""
    group = CommandPalette._GATHER_COMMANDS_GROUP
    await wait_until(lambda: all(one.is_finished for one in app.workers if one.group == group))


async def ask(pilot: Any, text: str) -> None:
    """Type a message into the chat and send it."""
    prompt = pilot.app.screen.query_one("Prompt")
    prompt.text = text
    prompt.focus()
    await pilot.press("enter")
