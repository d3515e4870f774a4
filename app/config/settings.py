"""The user's settings: a TOML file, and what holds where it says nothing.

What is given on the command line comes first, then the environment (INGOT_THEME,
INGOT_SAMPLING_TEMPERATURE and so on), then the file, then the default. INGOT_CONFIG names another
file. A setting that is unknown or wrong is told and its default taken: a slip in one line must not
keep anybody from their chats.

::

    theme = "nord"
    thinking = "shown"

    [chat]
    model = "assets/pebble-built"

    [sampling]
    temperature = 0.4

    [keymap]
    "chat.stop" = "escape,f12"

    [presets.reviewer]
    system = "You review code."
    sampling = { temperature = 0 }

    [models.small]
    slots = 8
    kv_type = "q8_0"
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from runtimes.errors import IngotError
from runtimes.paths import config_dir

if TYPE_CHECKING:
    from runtimes.request import SamplingParams

_Value = TypeVar("_Value")
Source = Literal["command line", "environment", "preset", "file", "default"]


class ConfigError(IngotError):
    """The settings cannot be read or written, or one of them is wrong."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of a new chat. The system prompt and the sampling of ``preset`` are in ``system``
    and in the sampling already, unless the environment or the command line says otherwise."""

    model: str | None = None
    system: str | None = None
    preset: str | None = None
    context: int | None = None
    threads: int | None = None
    sidebar: bool = True  # the list of chats beside the chat, where there is room
    saved_mb: int = 1000  # of disk for what prompts begin with; see app.models.prefixes


def _param(default: _Value, label: str, range: str, help: str) -> _Value:
    """A field with what the chat's panel and /set tell of it; ``range`` is what may be typed."""
    words = {"label": label, "range": range, "help": help}
    return field(default=default, metadata=words)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers in a chat are sampled, as ``runtimes.request.SamplingParams``. Not greedy as
    `ingot run` is: asking again should be able to answer something else."""

    temperature: float = _param(0.7, "Temperature", "0 or more", "0 always takes the likeliest")
    top_p: float = _param(0.95, "Top-p", "above 0, to 1 (off)", "the likeliest up to this sum")
    top_k: int = _param(0, "Top-k", "0 (off) or more", "only the k likeliest tokens")
    min_p: float = _param(0.0, "Min-p", "0 (off) to 1", "only tokens this likely, to the likeliest")
    max_tokens: int = _param(1024, "Longest answer", "1 or more", "tokens of an answer at most")
    repetition_penalty: float = _param(
        1.0, "Repetition", "above 0; 1 is off", "above 1 repeats less"
    )
    presence_penalty: float = _param(0.0, "Presence", "-2 to 2; 0 is off", "off tokens seen once")
    frequency_penalty: float = _param(
        0.0, "Frequency", "-2 to 2; 0 is off", "off for each time seen"
    )
    seed: int | None = _param(
        None, "Seed", "a whole number, or nothing", "makes answers repeatable"
    )
    stop: tuple[str, ...] = _param(
        (), "Stop texts", r"texts, | between, \n a line end", "end an answer"
    )

    def params(self, **changes: Any) -> SamplingParams:
        """The engine's form, with ``changes``. Raises RequestError for a value out of range."""
        from runtimes.request import SamplingParams

        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return SamplingParams(**{**values, **changes})


@dataclass(frozen=True, slots=True)
class Preset:
    """A system prompt and sampling under a name; ``sampling`` has only what it changes."""

    name: str
    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


# Presets that come with the app.
BUILT_IN: tuple[Preset, ...] = (
    Preset("plain"),
    Preset("precise", "Answer exactly and briefly. Say so if you do not know.", {"temperature": 0}),
    Preset(
        "coder",
        "You are an experienced programmer. Give working code in fenced blocks that name the"
        " language, then explain in a few sentences what matters.",
        {"temperature": 0.2},
    ),
    Preset(
        "reviewer",
        "You review text and code. Name the defects, the worst first, each with the place and a"
        " better version. Do not praise.",
        {"temperature": 0.2},
    ),
    Preset(
        "translator",
        "Translate what the user writes into English; if it is English, into the language that the"
        " user names. Answer with the translation only.",
        {"temperature": 0},
    ),
    Preset(
        "writer",
        "You are a writer with a plain and vivid style. Follow the length that is asked for.",
        {"temperature": 1.0, "min_p": 0.05},
    ),
)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. ``theme`` None leaves the choice to the app; ``keymap`` has the keys, separated
    by commas, of bindings by their ids; ``models`` what `ingot serve` loads a model with, by its
    name, as the fields of ``app.options`` are called."""

    theme: str | None = None
    mouse: bool = True
    thinking: Literal["collapsed", "shown", "hidden"] = "collapsed"
    chat: ChatSettings = ChatSettings()
    sampling: Sampling = Sampling()
    keymap: Mapping[str, str] = field(default_factory=dict)
    presets: tuple[Preset, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, the file they may be in, those that are not defaults by their dotted names, where
    each comes from, and what was wrong."""

    config: Config
    path: Path
    values: dict[str, Any]
    sources: Mapping[str, Source]
    problems: tuple[str, ...] = ()

    def checked(self) -> Config:
        """The settings. Raises ConfigError when anything was wrong with them."""
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        return self.config


def config_path() -> Path:
    """The file of the settings; it need not exist."""
    named = os.environ.get("INGOT_CONFIG", "").strip()
    return Path(named).expanduser() if named else config_dir() / "config.toml"
