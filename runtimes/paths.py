"""Folders of Ingot: what it can make again (cache), what was asked for (data), what it has learned
(state) and how the user wants it (config).

Standard library only: the native build uses it before anything is installed. The folders are the
ones that platformdirs would choose. INGOT_HOME puts all of them below one folder.
"""

import os
import sys
from pathlib import Path

_NAME = "ingot"


def cache_dir() -> Path:
    """Folder for files that can be made or downloaded again. Not created here."""
    return _folder("cache", "XDG_CACHE_HOME", ".cache", mac="Caches", windows="Cache")


def data_dir() -> Path:
    """Folder for what the user has asked to keep, such as pulled models. Not created here."""
    return _folder("data", "XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """Folder for what was learned about this machine. Not created here."""
    return _folder("state", "XDG_STATE_HOME", ".local/state")


def config_dir() -> Path:
    """Folder for the user's settings. Not created here."""
    return _folder("config", "XDG_CONFIG_HOME", ".config")


def _folder(
    kind: str, variable: str, default: str, mac: str = "Application Support", windows: str = ""
) -> Path:
    if home := os.environ.get("INGOT_HOME"):
        return Path(home) / kind
    if sys.platform == "darwin":
        found = Path.home() / "Library" / mac / _NAME
    elif sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        found = Path(local) / _NAME / _NAME / windows
    else:
        base = os.environ.get(variable, "").strip()
        found = (Path(base) if base else Path.home() / default) / _NAME
    return found
