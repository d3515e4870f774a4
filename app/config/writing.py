"""Changing one setting in the user's file. The comments and the order of the rest stay."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from app.config.reading import text_of
from app.config.settings import ConfigError, Preset, config_path
from app.config.values import check, parts_of
from quantize.disk import write_atomically
from runtimes.machine.locks import one_writer


def set_value(key: str, value: Any, path: Path | None = None) -> Path:
    """Write a setting to the file, made when it is not there; the file that was written.

    Raises ConfigError for a setting that there is not, a wrong value, a file that is not TOML (it
    stays as it is), and one that cannot be written.
    """
    import tomlkit

    good = check(key, value)
    *tables, name = parts_of(key)
    with _editing(path) as (file, document):
        at = document
        for table in tables:
            at = at.setdefault(table, tomlkit.table())
            if not isinstance(at, dict):
                raise ConfigError(f"{file}: {table} must be a table to hold {key}")
        at[name] = _plain(good)
    return file


def unset_value(key: str, path: Path | None = None) -> bool:
    """Take a setting out of the file; whether it was there. Raises ConfigError as ``set_value``,
    except for the value: a wrong one can be taken out."""
    return _remove(parts_of(key), path)


def set_preset(preset: Preset, path: Path | None = None) -> Path:
    """Write a preset to the file, in place of all that one of its name has had; the file that was
    written. Raises ConfigError as ``set_value``."""
    import tomlkit

    table = tomlkit.table()
    if preset.system is not None:
        table["system"] = preset.system
    for name, value in preset.sampling.items():
        good = check(f"presets.{preset.name}.sampling.{name}", value)
        table.setdefault("sampling", tomlkit.inline_table())[name] = _plain(good)
    with _editing(path) as (file, document):
        presets = document.setdefault("presets", tomlkit.table(is_super_table=True))
        if not isinstance(presets, dict):
            raise ConfigError(f"{file}: presets must be a table")
        document["presets"][preset.name] = table
    return file


def remove_preset(name: str, path: Path | None = None) -> bool:
    """Take a preset out of the file; whether it was there. Raises ConfigError."""
    return _remove(("presets", name), path)


def _remove(parts: Sequence[str], path: Path | None) -> bool:
    *tables, name = parts
    with _editing(path) as (_, document):
        at = document
        for table in tables:
            at = at.get(table) if isinstance(at, dict) else None
        if not isinstance(at, dict) or name not in at:
            return False
        del at[name]
    return True


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextlib.contextmanager
def _editing(path: Path | None) -> Iterator[tuple[Path, Any]]:
    """The file and what it says, which is written in one step when the block has changed it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    # The file itself: people keep their settings elsewhere and link to them.
    file = Path(os.path.realpath(config_path() if path is None else path))
    mode = 0o600
    with _writer(file):
        try:
            before = text_of(file)
            if not file.is_file():  # a device: replacing /dev/null would harm everybody
                raise ConfigError(f"{file} is no file, so that no setting can be written to it")
            mode = file.stat().st_mode & 0o7777
            document = tomlkit.parse(before)
        except FileNotFoundError:
            before, document = "", tomlkit.document()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        except RecursionError as error:
            raise ConfigError(f"{file} is nested too deeply; fix it first") from error
        except (TOMLKitError, ValueError) as error:
            raise ConfigError(f"{file} is not TOML; fix it first: {error}") from error
        yield file, document
        try:
            after = tomlkit.dumps(document)
            if after == before:
                return
            write_atomically(file, after)
            file.chmod(mode)
        except RecursionError as error:
            raise ConfigError(f"{file} is nested too deeply; fix it first") from error
        except OSError as error:
            said = f"{file} cannot be written: {error.strerror}; it is as it was"
            raise ConfigError(said) from error


@contextlib.contextmanager
def _writer(file: Path) -> Iterator[None]:
    """Keep other writers of ``file`` off: what they write meanwhile would be lost."""
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(one_writer(file.parent))
        except OSError as error:
            said = f"{file} cannot be written: {error.strerror}; it is as it was"
            raise ConfigError(said) from error
        yield
