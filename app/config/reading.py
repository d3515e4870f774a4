"""Settings as they are gathered: from the file, the environment and the command line."""

import os
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
from app.config.values import SETTINGS, check, parse, preset_name


class Reading:
    """Values by dotted name; what is taken later holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.sources: dict[str, Source] = {}
        self.presets: dict[str, None] = {}  # also those that say nothing
        self.problems: list[str] = []

    def take(self, key: str, value: Any, source: Source, where: str) -> None:
        """Note a value, or what is wrong with it."""
        try:
            self.values[key] = check(key, value)
            self.sources[key] = source
        except ConfigError as error:
            self.problems.append(f"{where}: {error}")

    def read_file(self) -> None:
        """Take what the file says."""
        try:
            data = tomllib.loads(self.path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            if os.environ.get("INGOT_CONFIG", "").strip() and self.path == config_path():
                self.problems.append(f"{self.path}: INGOT_CONFIG names it, and it is not there")
            return
        except OSError as error:
            self.problems.append(f"{self.path} cannot be read: {error.strerror}")
            return
        except ValueError as error:  # TOML's and UTF-8's
            self.problems.append(f"{self.path} is not TOML, so nothing of it holds: {error}")
            return
        presets = data.get("presets")
        if isinstance(presets, dict):
            named = (name for name, preset in presets.items() if isinstance(preset, dict))
            self.presets.update(dict.fromkeys(named))
        for key, value in _flat(data):
            self.take(key, value, "file", str(self.path))

    def read_environment(self) -> None:
        """Take what variables such as INGOT_CHAT_MODEL say."""
        for key in SETTINGS:
            name = "INGOT_" + key.replace(".", "_").upper()
            text = os.environ.get(name)
            if not text:
                continue
            try:
                self.take(key, parse(key, text), "environment", name)
            except ConfigError as error:
                self.problems.append(f"{name}: {error}")

    def result(self) -> Loaded:
        """What holds."""
        self.presets.update(dict.fromkeys(filter(None, map(preset_name, self.values))))
        presets = tuple(
            Preset(
                name,
                self.values.get(f"presets.{name}.system"),
                self._below(f"presets.{name}.sampling"),
            )
            for name in self.presets
        )
        self._begin_with_preset(presets)
        config = Config(
            **{key: value for key, value in self.values.items() if "." not in key},
            chat=ChatSettings(**self._below("chat")),
            sampling=Sampling(**self._below("sampling")),
            keymap=self._below("keymap"),
            presets=presets,
        )
        return Loaded(config, self.path, self.sources, tuple(self.problems))

    def _begin_with_preset(self, own: tuple[Preset, ...]) -> None:
        """What ``chat.preset`` says comes before what the file says of new chats in general."""
        name = self.values.get("chat.preset")
        if name is None:
            return
        known = {preset.name: preset for preset in (*BUILT_IN, *own)}
        if name not in known:
            source = self.sources["chat.preset"]
            where = self.path if source == "file" else f"the {source}"
            self.problems.append(
                f"{where}: chat.preset is {name!r}, which is not a preset; there are:"
                f" {', '.join(known)}"
            )
            del self.values["chat.preset"], self.sources["chat.preset"]
            return
        preset = known[name]
        said = {
            f"sampling.{key}": check(f"sampling.{key}", value)
            for key, value in preset.sampling.items()
        }
        if preset.system is not None:
            said["chat.system"] = preset.system
        for key, value in said.items():
            if self.sources.get(key, "default") in ("default", "file"):
                self.values[key], self.sources[key] = value, "preset"

    def _below(self, table: str) -> dict[str, Any]:
        prefix = f"{table}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.values.items()
            if key.startswith(prefix)
        }


def load(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Read the settings. ``flags`` are values from the command line by dotted name, such as
    ``chat.model``; those that are None were not given.

    A file that is not there says nothing; of one that cannot be read, that is a problem. Nothing is
    raised: see ``Loaded.checked``.
    """
    reading = Reading(config_path() if path is None else path)
    reading.read_file()
    reading.read_environment()
    for key, value in (flags or {}).items():
        if value is not None:
            reading.take(key, value, "command line", "the command line")
    return reading.result()


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
