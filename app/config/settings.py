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

    [mcp.servers.time]
    command = "uvx"
    args = ["mcp-server-time"]
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import (
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

from app.options import FLAGS, ModelOptions, PlanOptions
from runtimes.errors import IngotError, RequestError
from runtimes.paths import config_dir
from runtimes.request import SamplingParams, UserSampling, with_default
from runtimes.settings import MOST_SLOTS, MOST_THREADS

Source = Literal["environment", "preset", "file"]


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


@dataclass(frozen=True, slots=True)
class Sampling(UserSampling):
    """Sampling of answers in a chat. Not greedy as in `ingot run`: the same question may get
    another answer."""

    max_tokens: int = with_default("max_tokens", 1024)
    temperature: float = with_default("temperature", 0.7)
    top_p: float = with_default("top_p", 0.95)

    def params(self, **changes: Any) -> SamplingParams:
        """The engine's form, with ``changes``. Raises RequestError for a value out of range."""
        return SamplingParams(**asdict(self) | changes)


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
class ToolSettings:
    """Limits of tool calls; ``servers`` are the MCP servers, as ``ServerSettings`` has them."""

    calls: int = 10  # of one turn at most
    seconds: int = 60  # of one call at most, and of a server's start
    kib: int = 64  # of what a call returns; the rest is cut
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """An MCP server: a ``command``, or a ``url``. ${NAME} in a value is a variable of the
    environment."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    on: bool = False  # in new chats


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. ``theme`` None leaves the choice to the app; ``keymap`` has the keys, separated
    by commas, of bindings by their ids; ``models`` what `ingot serve` loads a model with, by its
    name, as the fields of ``app.options`` are called."""

    theme: str | None = None
    mouse: bool = True
    thinking: Literal["collapsed", "shown", "hidden"] = "collapsed"
    notify: Literal["off", "bell", "desktop"] = "bell"  # when work ends while one looks elsewhere
    notify_after: int = 10  # seconds that it took
    chat: ChatSettings = ChatSettings()
    sampling: Sampling = Sampling()
    keymap: Mapping[str, str] = field(default_factory=dict)
    presets: tuple[Preset, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mcp: ToolSettings = ToolSettings()


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


# Schema: types and bounds by dotted names, such as ``sampling.temperature``.

TABLES = ("chat", "sampling", "keymap", "presets", "models", "mcp", "mcp.servers")
_TEXTS = ("mcp.servers.*.env", "mcp.servers.*.headers")  # tables of texts by the user's names
_NAMED = ("presets", "models", "mcp.servers")  # the tables in them have the user's names


def _table(prefix: str, owner: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(owner)
    names = (item.name for item in fields(owner) if prefix + item.name not in (*TABLES, *_TEXTS))
    return {prefix + name: _without_none(hints[name]) for name in names}


def _without_none(hint: Any) -> Any:
    """The type of a setting that is there: None stands for one that is not."""
    arms = get_args(hint)
    return next(arm for arm in arms if arm is not NoneType) if NoneType in arms else hint


# Types of the settings whose names are fixed. Those below ``keymap``, ``presets``, ``models`` and
# ``mcp.servers`` have names that the user gives.
SETTINGS: Mapping[str, Any] = {
    **_table("", Config),
    **_table("chat.", ChatSettings),
    **_table("sampling.", Sampling),
    **_table("mcp.", ToolSettings),
}
_MODEL, _SERVER = "models.*.", "mcp.servers.*."
_TYPES: Mapping[str, Any] = {
    **SETTINGS,
    "keymap.*": str,
    f"{_MODEL}aliases": tuple[str, ...],
    f"{_MODEL}slots": int,
    **_table(_MODEL, ModelOptions),
    **_table(_MODEL, PlanOptions),
    **_table(_SERVER, ServerSettings),
    **{f"{table}.*": str for table in _TEXTS},
}
_BOUNDS = {
    "notify_after": (0, None),
    "chat.context": (8, None),
    "chat.threads": (1, MOST_THREADS),
    "chat.saved_mb": (0, None),
    "mcp.calls": (1, 1000),
    "mcp.seconds": (1, 3600),
    "mcp.kib": (1, 1024),
    f"{_MODEL}slots": (1, MOST_SLOTS),
}
# Table, name of the user's, and what is below it.
_BY_NAME = (
    re.compile(r"(presets)\.(.+?)\.(system|sampling\.\w+)"),
    re.compile(r"(models)\.(.+)\.(\w+)"),
    re.compile(r"(mcp\.servers)\.(.+?)\.(\w+|(?:env|headers)\..+)"),
)
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def parts_of(key: str) -> tuple[str, ...]:
    """The tables of a TOML file that lead to ``key``, and its name in the last."""
    for pattern in _BY_NAME:
        if match := pattern.fullmatch(key):
            table, name, inner = match.groups()
            return (*table.split("."), name, *inner.split(".", 1))
    first, _, rest = key.partition(".")
    return (first, rest) if rest else (first,)


def parse(key: str, text: str) -> Any:
    """A setting's value from the command line or the environment. Raises ConfigError for a setting
    that there is not, and for a text that is no such value."""
    plain = _TYPES[known(key)]
    value: Any = text
    if plain is bool:
        value = _BOOLEANS.get(text.strip().lower(), text)
    elif plain in (int, float):
        value = _number(text)
    elif get_origin(plain) is tuple:
        value = _list(text)
    return check(key, value)


def check(key: str, value: Any) -> Any:
    """``value`` as the setting ``key`` has it. Raises ConfigError that says what is expected."""
    setting = known(key)
    plain = _TYPES[setting]
    good = value
    if isinstance(value, list):
        joined = setting == "keymap.*" and all(isinstance(item, str) for item in value)
        good = ",".join(value) if joined else tuple(value)
    elif plain is float and type(value) is int:
        good = float(value)
    elif get_origin(plain) is Literal and type(value) is int:  # bits = 4
        good = str(value)
    if not _is(plain, good):
        raise ConfigError(f"{key} must be {_expected(plain)}, not {value!r}")
    flag = FLAGS.get(setting.removeprefix(_MODEL), {})
    least, most = _BOUNDS.get(setting, (flag.get("min"), flag.get("max")))
    if least is not None and good < least:
        raise ConfigError(f"{key} must be at least {least}, not {value!r}")
    if most is not None and good > most:
        raise ConfigError(f"{key} must be at most {most}, not {value!r}")
    table, _, name = setting.partition(".")
    try:
        if table == "sampling":
            Sampling().params(**{name: good})
        elif "check" in flag:
            flag["check"](good)
    except RequestError as error:
        raise ConfigError(f"{key}: {error}") from error
    return good


def known(key: str) -> str:
    """The setting's name without those that the user gives: what a preset says is of a chat. Raises
    ConfigError for a setting that there is not."""
    setting = key
    match parts_of(key):
        case ("keymap", _):
            setting = "keymap.*"
        case ("presets", _, "system"):
            setting = "chat.system"
        case ("presets", _, "sampling", name):
            setting = f"sampling.{name}"
        case ("models", _, name):
            setting = _MODEL + name
        case ("mcp", "servers", _, name):
            setting = _SERVER + name
        case ("mcp", "servers", _, name, _):
            setting = f"{_SERVER}{name}.*"
    if setting in _TYPES:
        return setting
    if prefix := next((one for one in (_MODEL, _SERVER) if setting.startswith(one)), None):
        own = [name.removeprefix(prefix) for name in _TYPES if name.startswith(prefix)]
        near = difflib.get_close_matches(setting.removeprefix(prefix), own, n=1)
        told = f"there are {', '.join(own)}"
    elif key in TABLES or key.rpartition(".")[0] in _NAMED:
        raise ConfigError(f"{key} must be a table, written as [{key}]")
    else:
        near = difflib.get_close_matches(key, SETTINGS, n=1)
        if not near:  # the right name in the wrong table, or in none
            near = [name for name in SETTINGS if name.rpartition(".")[2] == key.rpartition(".")[2]]
        told = "`ingot config` lists all settings"
    if near:
        told = f"did you mean {near[0]}?"
    raise ConfigError(f"there is no setting {key}; {told}")


def _is(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint) and not (isinstance(value, float) and not math.isfinite(value))


def _expected(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of texts"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[hint]


def _number(text: str) -> int | float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def _list(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
