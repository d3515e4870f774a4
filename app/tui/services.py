"""What the screens work with: settings, chats, the engine, the monitor.

A screen gets them by ``app.tui.app.services_of(self)``, which is ``self.app.services`` with types.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from app.options import ModelOptions, PlanOptions
from runtimes.errors import RequestError

if TYPE_CHECKING:
    from app.chat.host import EngineHost
    from app.config import Config
    from app.monitor import Monitor
    from app.store import Store


@dataclass(frozen=True, slots=True)
class Start:
    """What the command line asked for: a model to load, and the chat to open (None: a new one).

    ``resume`` asks for the last chat; ``open_services`` turns it into the number of one.
    """

    model: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: PlanOptions = field(default_factory=PlanOptions)
    system: str | None = None
    chat: int | None = None
    resume: bool = False


@dataclass(slots=True)
class Services:
    """Opened before the app runs and closed after it."""

    config: Config
    store: Store
    host: EngineHost
    monitor: Monitor
    start: Start


@contextmanager
def open_services(start: Start) -> Iterator[Services]:
    """Services for one run of the app.

    Raises StoreError and ConfigError, and RequestError when there is no chat to resume.
    """
    from app.chat.host import EngineHost
    from app.config import Config
    from app.monitor import Monitor
    from app.store import Store

    config = Config.load()
    with Store.open() as store:
        start = _resolved(start, store)
        host = EngineHost()
        monitor = Monitor(host)
        monitor.start()
        try:
            yield Services(config, store, host, monitor, start)
        finally:
            host.close()
            monitor.stop()


def _resolved(start: Start, store: Store) -> Start:
    """``start`` with the chat to open by number, and that chat's model unless one was named."""
    if start.resume:
        last = store.chats(limit=1)
        if not last:
            raise RequestError("there is no chat to resume; start one with `ingot chat MODEL`")
        start = replace(start, chat=last[0].id)
    if start.chat is None:
        return start
    chat = store.chat(start.chat)
    return replace(start, model=start.model or chat.model)
