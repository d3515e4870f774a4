"""Settings from the file and the environment; and changes of the user's file."""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from app.config.settings import (
    BUILT_IN,
    SETTINGS,
    ChatSettings,
    Config,
    ConfigError,
    Loaded,
    Preset,
    Sampling,
    Source,
    ToolSettings,
    check,
    config_path,
    parse,
    parts_of,
)
from app.here import named_text
from quantize.disk import write_atomically
from runtimes.machine.locks import one_writer
from runtimes.untrusted import Bounds, excess

_MOST_BYTES = 1 << 20


def load(path: Path | None = None) -> Loaded:
    """Read the settings. A file that is not there says nothing; of one that cannot be read, that is
    a problem. Nothing is raised: see ``Loaded.checked``."""
    file = path or config_path()
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    problems: list[str] = []
    data = _read(file, problems)
    for source, where, key, value in _given(file, data):
        try:
            # The environment has only texts.
            values[key] = parse(key, value) if source == "environment" else check(key, value)
            sources[key] = source
        except ConfigError as error:
            problems.append(f"{where}: {error}")
    presets = _presets(_nested(values), data)
    _begin_with_preset(file, presets, values, sources, problems)
    tables = _nested(values)
    for name, kind in (("chat", ChatSettings), ("sampling", Sampling), ("mcp", ToolSettings)):
        tables[name] = kind(**tables.get(name, {}))
    tables["presets"] = presets
    config = Config(**tables)
    return Loaded(config, file, values, sources, tuple(problems))


def text_of(file: Path) -> str:
    """The text of the file of the settings. Raises OSError, and ValueError for what is no text, or
    too large for settings."""
    mode = file.stat().st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISBLK(mode):  # a pipe is not waited for
        raise ValueError("it is no file")
    return named_text(file, "utf-8-sig", _MOST_BYTES)


def _read(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        data = tomllib.loads(text_of(file))
        beyond = excess(data, Bounds())
        if beyond is None:
            return data
        problems.append(f"{file} {beyond}, so nothing of it holds")
    except FileNotFoundError:
        if os.environ.get("INGOT_CONFIG", "").strip() and file == config_path():
            problems.append(f"{file}: INGOT_CONFIG names it, and it is not there")
    except OSError as error:
        problems.append(f"{file} cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's, lists within each other
        problems.append(f"{file} is not TOML, so nothing of it holds: {error}")
    return {}


def _given(file: Path, data: Mapping[str, Any]) -> Iterator[tuple[Source, str, str, Any]]:
    """Source, its name in messages, key and value; the lowest precedence first."""
    for key, value in _flat(data):
        yield "file", str(file), key, value
    for key in SETTINGS:
        name = "INGOT_" + key.replace(".", "_").upper()
        if text := os.environ.get(name):
            yield "environment", name, key, text


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables in each other, as in the file."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = parts_of(key)
        at = root
        for table in tables:
            at = at.setdefault(table, {})
        at[name] = value
    return root


def _presets(values: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Preset, ...]:
    """The user's own, also those that say nothing."""
    good, tables = values.get("presets", {}), data.get("presets")
    tables = tables if isinstance(tables, dict) else {}
    said = [name for name, preset in tables.items() if isinstance(preset, dict)]
    return tuple(Preset(name, **good.get(name, {})) for name in dict.fromkeys([*said, *good]))


def _begin_with_preset(
    file: Path,
    own: tuple[Preset, ...],
    values: dict[str, Any],
    sources: dict[str, Source],
    problems: list[str],
) -> None:
    """Let ``chat.preset`` come before what the file says of new chats in general."""
    key = "chat.preset"
    name = values.get(key)
    if name is None:
        return
    known = {preset.name: preset for preset in (*BUILT_IN, *own)}
    if name not in known:
        where = file if sources[key] == "file" else f"the {sources[key]}"
        there = ", ".join(known)
        problems.append(f"{where}: {key} is {name!r}, which is not a preset; there are: {there}")
        del values[key], sources[key]
        return
    preset = known[name]
    said = {f"sampling.{k}": check(f"sampling.{k}", v) for k, v in preset.sampling.items()}
    if preset.system is not None:
        said["chat.system"] = preset.system
    for key, value in said.items():
        if sources.get(key) != "environment":
            values[key], sources[key] = value, "preset"


# Changing one setting in the user's file. The comments and the order of the rest stay.


def set_value(key: str, value: Any) -> Path:
    """Write a setting to the file, made when it is not there; the file that was written.

    Raises ConfigError for a setting that there is not, a wrong value, a file that is not TOML (it
    stays as it is), and one that cannot be written.
    """
    import tomlkit

    good = check(key, value)
    *tables, name = parts_of(key)
    with editing() as (file, document):
        at = document
        for table in tables:
            at = at.setdefault(table, tomlkit.table())
            if not isinstance(at, dict):
                raise ConfigError(f"{file}: {table} must be a table to hold {key}")
        at[name] = good
    return file


def remove(parts: Sequence[str]) -> bool:
    """Take a setting, or a preset, out of the file by its tables and its name in the last; whether
    it was there. Raises ConfigError as ``set_value``, except for the value: a wrong one can be
    taken out."""
    *tables, name = parts
    with editing() as (_, document):
        at = document
        for table in tables:
            at = at.get(table) if isinstance(at, dict) else None
        if not isinstance(at, dict) or name not in at:
            return False
        del at[name]
    return True


@contextmanager
def editing() -> Iterator[tuple[Path, Any]]:
    """The file and what it says, which is written in one step when the block has changed it. Other
    writers are kept off: what they write meanwhile would be lost."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    # The file itself: people keep their settings elsewhere and link to them.
    file = Path(os.path.realpath(config_path()))
    mode = 0o600
    with ExitStack() as stack:
        with _problems(file, "written", "; it is as it was"):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(one_writer(file.parent))
        with _problems(file, "read"):
            try:
                before = text_of(file)
                if not file.is_file():  # a device: replacing /dev/null would harm everybody
                    raise ConfigError(f"{file} is no file, so that no setting can be written to it")
                mode = file.stat().st_mode & 0o7777
                document = tomlkit.parse(before)
            except FileNotFoundError:
                before, document = "", tomlkit.document()
            except (TOMLKitError, ValueError) as error:
                raise ConfigError(f"{file} is not TOML; fix it first: {error}") from error
        yield file, document
        with _problems(file, "written", "; it is as it was"):
            after = tomlkit.dumps(document)
            if after != before:
                write_atomically(file, after)
                file.chmod(mode)


@contextmanager
def _problems(file: Path, verb: str, then: str = "") -> Iterator[None]:
    """Raises ConfigError for a ``file`` that cannot be read or written, or is nested too deeply."""
    try:
        yield
    except RecursionError as error:
        raise ConfigError(f"{file} is nested too deeply; fix it first") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be {verb}: {error.strerror}{then}") from error
