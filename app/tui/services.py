"""What the screens work with: settings, chats, the engine, the monitor.

A screen gets them as ``self.app.services`` (see ``app.tui.modes.services_of`` for the typed way).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.options import ModelOptions, PlanOptions

if TYPE_CHECKING:
    from app.chat.host import EngineHost
    from app.config import Config
    from app.monitor import Monitor
    from app.store import Store


@dataclass(frozen=True, slots=True)
class Start:
    """What the command line asked for: a model to load, and the chat to open (None: a new one)."""

    model: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: PlanOptions = field(default_factory=PlanOptions)
    system: str | None = None
    chat: int | None = None


@dataclass(slots=True)
class Services:
    """Opened before the app runs and closed after it."""

    config: Config
    store: Store
    host: EngineHost
    monitor: Monitor
    start: Start
