"""Where Ingot keeps what it can make again (cache), what was asked for (data), what it has learned
(state) and how the user wants it (config).

Standard library only: the native build uses it before anything is installed. The folders are the
ones that platformdirs would choose. INGOT_HOME puts all of them below one folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NAME = "ingot"


def cache_dir() -> Path:
    """Folder for files that can be made or downloaded again. Not created here."""
    if home := os.environ.get("INGOT_HOME"):
        return Path(home) / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / _NAME
    if sys.platform == "win32":
        return _local_app_data() / "Cache"
    return _xdg("XDG_CACHE_HOME", ".cache")


def data_dir() -> Path:
    """Folder for what the user has asked to keep, such as pulled models. Not created here."""
    if home := os.environ.get("INGOT_HOME"):
        return Path(home) / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _NAME
    if sys.platform == "win32":
        return _local_app_data()
    return _xdg("XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """Folder for what was learned about this machine. Not created here."""
    if home := os.environ.get("INGOT_HOME"):
        return Path(home) / "state"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _NAME
    if sys.platform == "win32":
        return _local_app_data()
    return _xdg("XDG_STATE_HOME", ".local/state")


def config_dir() -> Path:
    """Folder for the user's settings. Not created here."""
    if home := os.environ.get("INGOT_HOME"):
        return Path(home) / "config"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _NAME
    if sys.platform == "win32":
        return _local_app_data()
    return _xdg("XDG_CONFIG_HOME", ".config")


def _xdg(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "").strip()
    return (Path(base) if base else Path.home() / default) / _NAME


def _local_app_data() -> Path:
    base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    return Path(base) / _NAME / _NAME
