"""Services of the screens: settings, chats, the engine, the monitor.

A screen gets them by ``app.tui.app.services_of(self)``, which is ``self.app.services`` with types.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.chat.host import EngineHost
from app.chat.store.store import ChatStore
from app.config.files import load
from app.config.settings import Config
from app.models.prefixes import shared_prefixes
from app.monitor.monitor import Monitor
from app.options import ModelOptions, PlanOptions
from runtimes.errors import RequestError
from runtimes.paths import cache_dir


@dataclass(frozen=True, slots=True)
class Start:
    """Wishes of the command line: a model to load, and the chat to open (None: a new one).

    ``resume`` asks for the last chat; ``open_services`` turns it into the number of one.
    """

    model: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: PlanOptions = field(default_factory=PlanOptions)
    system: str | None = None
    chat: int | None = None
    resume: bool = False
    raw: bool = False  # text as it is, without chat templates
    template: str | None = None  # a chat template instead of the models' own
    adapters: tuple[str, ...] = ()  # of the model, as they were given


@dataclass(slots=True)
class Services:
    """Opened before the app runs and closed after it. ``config`` is replaced when settings change;
    ``warnings`` are what was wrong with them at the start."""

    config: Config
    store: ChatStore
    host: EngineHost
    monitor: Monitor
    start: Start
    warnings: tuple[str, ...] = ()


@contextmanager
def open_services(start: Start) -> Iterator[Services]:
    """Services for one run of the app; what ``start`` leaves open is as the settings say.

    Raises StoreError, and RequestError when there is no chat to resume.
    """
    loaded = load()
    with ChatStore.open() as store:
        start = _resolved(start, store, loaded.config)
        prefixes = shared_prefixes(loaded.config.chat.saved_mb)
        prefixes.prune()
        shutil.rmtree(cache_dir() / "contexts", ignore_errors=True)  # of an earlier Ingot
        tools = None
        if loaded.config.mcp.servers:
            from app.tools.servers import ToolServers

            tools = ToolServers(loaded.config.mcp)
        host = EngineHost(
            raw=start.raw,
            template=start.template,
            prefixes=prefixes,
            adapters=start.adapters,
            tools=tools,
        )
        monitor = Monitor(host)
        monitor.start()
        try:
            yield Services(loaded.config, store, host, monitor, start, loaded.problems)
        finally:
            if tools is not None:
                tools.close()
            host.close()
            monitor.stop()


def _resolved(start: Start, store: ChatStore, config: Config) -> Start:
    """``start`` with the chat to open by number and the model to load: the one that was named, else
    that of the chat, else that of the settings."""
    if start.resume:
        last = store.chats(limit=1)
        if not last:
            raise RequestError("there is no chat to resume; start one with `ingot chat MODEL`")
        start = replace(start, chat=last[0].id)
    model = start.model
    if model is None and start.chat is not None:
        model = store.chat(start.chat).model
    options = replace(
        start.options,
        context=start.options.context or config.chat.context,
        threads=start.options.threads or config.chat.threads,
    )
    return replace(start, model=model or config.chat.model, options=options)
