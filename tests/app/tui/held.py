"""A chat's engine that waits for its test: whatever the machine's speed, an answer is not over."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.chat.host import EngineHost
from app.chat.store.store import ChatStore
from app.config.settings import Config
from app.monitor.monitor import Monitor
from app.tui.app import IngotApp
from app.tui.measure import RecordedEngine, RecordedHost
from app.tui.screens.chat import ChatScreen
from app.tui.services import Services, Start
from runtimes.engine.engine import Engine
from runtimes.request import Request
from runtimes.settings import RunnerSettings, SchedulerSettings
from tests.runtimes.engine.gates import Watched
from tests.support import wait_until


class HeldHost(EngineHost):
    """Has a real model loaded in this process. From its ``pieces``th piece on an answer waits
    between two steps until ``go`` is set; ``reading`` holds the engine before it reads a prompt."""

    def __init__(self, model: Path, pieces: int = 12) -> None:
        super().__init__()
        scheduling = SchedulerSettings(prefix_cache=False)
        self.held = Engine.load(model, RunnerSettings(slots=1, context=1024), scheduling)
        self.go, self.reading, self._pieces = threading.Event(), threading.Event(), pieces
        self.reading.set()
        self._submit = self.held.submit
        self.held.submit = self._watched  # type: ignore[method-assign]
        held: Any = self.held
        self._engine = held
        self._label = "pebble · q8_0"

    def load(self, *_: Any) -> Any:
        """It is loaded."""

    def close(self) -> None:
        """Let it end."""
        self.reading.set()
        self.go.set()
        super().close()

    def _watched(self, request: Request) -> Watched:
        came = 0

        def look() -> None:
            nonlocal came
            came += 1
            if came >= self._pieces:
                self.go.wait()

        self.held._post(lambda: self.reading.wait() and None)
        return Watched(self.held, request, look)


class GatedEngine(RecordedEngine):
    """Gives as many of its pieces as its test lets it."""

    def __init__(self, pieces: Sequence[str], may: int = 0) -> None:
        super().__init__(pieces, rate=1.0)
        self.may = may

    def _cancelled_before(self, number: int, begin: float) -> bool:
        while number >= self.may:
            if self._cancelled.wait(0.005):
                return True
        return self._cancelled.is_set()


def recorded(home: Path, pieces: Sequence[str] = ()) -> tuple[IngotApp, GatedEngine]:
    """An app without a real model, which answers with ``pieces``."""
    engine = GatedEngine(pieces)
    host = RecordedHost(engine)
    host._label, host.details = "pebble · q8_0", "llamacpp · 2 threads"
    services = Services(Config(), ChatStore.open(), host, Monitor(host), Start("recorded"))
    return IngotApp(services), engine


async def feed(screen: ChatScreen, engine: GatedEngine, until: int) -> None:
    """Let pieces come, a few at a time, each after the screen has taken those before it."""
    while engine.may < until:
        engine.may = min(engine.may + 100, until)
        await wait_until(
            lambda: (
                len(engine.given) == engine.may
                and (screen.turn is None or screen.turn.meter.tokens == engine.may)
            )
        )
