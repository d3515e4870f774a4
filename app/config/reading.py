"""Settings as they are gathered: from the file, the environment and the command line."""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.config.settings import (
    BUILT_IN,
    ChatSettings,
    Config,
    ConfigError,
    Loaded,
    Preset,
    Sampling,
    Source,
    config_path,
)
from app.config.values import SETTINGS, check, model_setting, parse, preset_name
from runtimes.untrusted import Bounds, excess

_MOST_BYTES = 1 << 20


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Read the settings. ``flags`` are values from the command line by dotted name, such as
    ``chat.model``; those that are None were not given.

    A file that is not there says nothing; of one that cannot be read, that is a problem. Nothing is
    raised: see ``Loaded.checked``.
    """
    file = config_path() if path is None else path
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    problems: list[str] = []
    data = _read(file, problems)
    for source, where, key, value in _given(file, data, flags or {}):
        try:
            # The environment has only texts.
            values[key] = parse(key, value) if source == "environment" else check(key, value)
            sources[key] = source
        except ConfigError as error:
            problems.append(f"{where}: {error}")
    presets = _presets(values, data)
    _begin_with_preset(file, presets, values, sources, problems)
    config = Config(
        **{key: value for key, value in values.items() if "." not in key},
        chat=ChatSettings(**_below("chat", values)),
        sampling=Sampling(**_below("sampling", values)),
        keymap=_below("keymap", values),
        presets=presets,
        models=_models(values),
    )
    return Loaded(config, file, values, sources, tuple(problems))


def text_of(file: Path) -> str:
    """The text of the file of the settings. Raises OSError, and ValueError for what is no text, or
    too large for settings."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # a pipe is not waited for
    with open(file, "rb", opener=lambda path, _: os.open(path, flags)) as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # many take /dev/null for an empty file
            raise ValueError("it is no file")
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
    return data.decode("utf-8-sig")


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


def _given(
    file: Path, data: Mapping[str, Any], flags: Mapping[str, Any]
) -> Iterator[tuple[Source, str, str, Any]]:
    """Source, what messages call it, name and value; what comes later holds."""
    for key, value in _flat(data):
        yield "file", str(file), key, value
    for key in SETTINGS:
        name = "INGOT_" + key.replace(".", "_").upper()
        if text := os.environ.get(name):
            yield "environment", name, key, text
    for key, value in flags.items():
        if value is not None:
            yield "command line", "the command line", key, value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _below(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{table}."
    return {k.removeprefix(start): value for k, value in values.items() if k.startswith(start)}


def _presets(values: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Preset, ...]:
    """The user's own, also those that say nothing."""
    tables = data.get("presets")
    tables = tables if isinstance(tables, dict) else {}
    said = [name for name, preset in tables.items() if isinstance(preset, dict)]
    names = dict.fromkeys([*said, *filter(None, map(preset_name, values))])
    return tuple(
        Preset(
            name, values.get(f"presets.{name}.system"), _below(f"presets.{name}.sampling", values)
        )
        for name in names
    )


def _models(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if found := model_setting(key):
            name, inner = found
            models.setdefault(name, {})[inner] = value
    return models


def _begin_with_preset(
    file: Path,
    own: tuple[Preset, ...],
    values: dict[str, Any],
    sources: dict[str, Source],
    problems: list[str],
) -> None:
    """What ``chat.preset`` says comes before what the file says of new chats in general."""
    name = values.get("chat.preset")
    if name is None:
        return
    known = {preset.name: preset for preset in (*BUILT_IN, *own)}
    if name not in known:
        source = sources["chat.preset"]
        where = file if source == "file" else f"the {source}"
        problems.append(
            f"{where}: chat.preset is {name!r}, which is not a preset; there are:"
            f" {', '.join(known)}"
        )
        del values["chat.preset"], sources["chat.preset"]
        return
    preset = known[name]
    said = {f"sampling.{k}": check(f"sampling.{k}", v) for k, v in preset.sampling.items()}
    if preset.system is not None:
        said["chat.system"] = preset.system
    for key, value in said.items():
        if sources.get(key, "default") in ("default", "file"):
            values[key], sources[key] = value, "preset"
