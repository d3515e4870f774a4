"""The app around the batch screen alone, for its tests."""

from __future__ import annotations

from typing import Any, ClassVar

from app.tui.app import IngotApp
from app.tui.screens.batch import BatchScreen


class BatchApp(IngotApp):
    MODES: ClassVar[dict[str, Any]] = {"batch": BatchScreen}
    DEFAULT_MODE = "batch"
