"""Changing one setting in the user's file. The comments and the order of the rest stay."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.config.settings import ConfigError, Preset, config_path
from app.config.values import check, parts_of

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def set_value(key: str, value: Any, path: Path | None = None) -> Path:
    """Write a setting to the file, made when it is not there; the file that was written.

    Raises ConfigError for a setting that there is not, a wrong value, a file that is not TOML (it
    stays as it is), and one that cannot be written.
    """
    import tomlkit

    good = check(key, value)
    file = _real(path)
    document = _read(file)
    *tables, name = parts_of(key)
    at: Any = document
    for table in tables:
        if table not in at:
            at[table] = tomlkit.table()
        at = at[table]
        if not isinstance(at, dict):
            raise ConfigError(f"{file}: {table} must be a table to hold {key}")
    at[name] = list(good) if isinstance(good, tuple) else good
    _write(file, tomlkit.dumps(document))
    return file


def unset_value(key: str, path: Path | None = None) -> bool:
    """Take a setting out of the file; whether it was there. Raises ConfigError as ``set_value``,
    except for the value: a wrong one can be taken out."""
    import tomlkit

    file = _real(path)
    document = _read(file)
    *tables, name = parts_of(key)
    at: Any = document
    for table in tables:
        at = at.get(table) if isinstance(at, dict) else None
    if not isinstance(at, dict) or name not in at:
        return False
    del at[name]
    _write(file, tomlkit.dumps(document))
    return True


def set_preset(preset: Preset, path: Path | None = None) -> Path:
    """Write a preset to the file, in place of all that one of its name has had; the file that was
    written. Raises ConfigError as ``set_value``."""
    import tomlkit

    system, sampling = preset.system, preset.sampling
    wanted: dict[str, Any] = {} if system is None else {"system": system}
    for name, value in sampling.items():
        good = check(f"presets.{preset.name}.sampling.{name}", value)
        wanted.setdefault("sampling", tomlkit.inline_table())
        wanted["sampling"][name] = list(good) if isinstance(good, tuple) else good
    file = _real(path)
    document: Any = _read(file)
    if not isinstance(document.setdefault("presets", tomlkit.table(is_super_table=True)), dict):
        raise ConfigError(f"{file}: presets must be a table")
    table = tomlkit.table()
    table.update(wanted)
    document["presets"][preset.name] = table
    _write(file, tomlkit.dumps(document))
    return file


def remove_preset(name: str, path: Path | None = None) -> bool:
    """Take a preset out of the file; whether it was there. Raises ConfigError."""
    import tomlkit

    file = _real(path)
    document = _read(file)
    presets = document.get("presets")
    if not isinstance(presets, dict) or name not in presets:
        return False
    del presets[name]
    _write(file, tomlkit.dumps(document))
    return True


def _real(path: Path | None) -> Path:
    """The file itself: people keep their settings elsewhere and link to them."""
    return Path(os.path.realpath(config_path() if path is None else path))


def _read(path: Path) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return tomlkit.document()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (TOMLKitError, ValueError) as error:
        raise ConfigError(f"{path} is not TOML; fix it first: {error}") from error


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, so that there is always a whole one."""
    partial: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(partial, path.stat().st_mode & 0o7777)
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        raise ConfigError(f"{path} cannot be written: {error.strerror}; it is as it was") from error
