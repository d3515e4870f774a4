"""Schema of the settings: types and bounds by dotted names, such as ``sampling.temperature``."""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from app.config.settings import ChatSettings, Config, ConfigError, Sampling
from app.options import ModelOptions, PlanOptions
from runtimes.errors import RequestError
from runtimes.settings import MOST_SLOTS, MOST_THREADS

TABLES = ("chat", "sampling", "keymap", "presets", "models")


def _table(prefix: str, owner: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(owner)
    names = [item.name for item in dataclasses.fields(owner) if item.name not in TABLES]
    return {prefix + name: hints[name] for name in names}


# Types of the settings whose names are fixed. Those below ``keymap``, ``presets`` and ``models``
# have names that the user gives.
SETTINGS: Mapping[str, Any] = MappingProxyType(
    _table("", Config) | _table("chat.", ChatSettings) | _table("sampling.", Sampling)
)
_MODEL = "models.*."
_TYPES: Mapping[str, Any] = {
    **SETTINGS,
    "keymap.*": str,
    f"{_MODEL}aliases": tuple[str, ...],
    f"{_MODEL}slots": int | None,
    **_table(_MODEL, ModelOptions),
    **_table(_MODEL, PlanOptions),
}
_BOUNDS = {
    "chat.context": (8, None),
    "chat.threads": (1, MOST_THREADS),
    "chat.saved_mb": (0, None),
    f"{_MODEL}slots": (1, MOST_SLOTS),
    **{
        _MODEL + item.name: (item.metadata.get("min"), item.metadata.get("max"))
        for owner in (ModelOptions, PlanOptions)
        for item in dataclasses.fields(owner)
    },
}
_model = re.compile(r"(models)\.(.+)\.(\w+)")
_preset = re.compile(r"(presets)\.(.+?)\.(system|sampling\.\w+)")
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def parts_of(key: str) -> tuple[str, ...]:
    """The tables of a TOML file that lead to ``key``, and its name in the last."""
    if match := _preset.fullmatch(key) or _model.fullmatch(key):
        table, name, inner = match.groups()
        return (table, name, *inner.split("."))
    first, _, rest = key.partition(".")
    return (first, rest) if rest else (first,)


def parse(key: str, text: str) -> Any:
    """A setting's value from the command line or the environment. Raises ConfigError for a setting
    that there is not, and for a text that is no such value."""
    plain = _type(known(key))
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
    plain = _type(setting)
    good = value
    if isinstance(value, list):
        joined = setting == "keymap.*" and all(isinstance(item, str) for item in value)
        good = ",".join(value) if joined else tuple(value)
    elif plain is float and isinstance(value, int) and not isinstance(value, bool):
        good = float(value)
    elif get_origin(plain) is Literal and type(value) is int:  # bits = 4
        good = str(value)
    if not _is(plain, good):
        raise ConfigError(f"{key} must be {_expected(plain)}, not {value!r}")
    least, most = _BOUNDS.get(setting, (None, None))
    if least is not None and good < least:
        raise ConfigError(f"{key} must be at least {least}, not {value!r}")
    if most is not None and good > most:
        raise ConfigError(f"{key} must be at most {most}, not {value!r}")
    table, _, name = setting.partition(".")
    if table == "sampling":
        try:
            Sampling().params(**{name: good})
        except RequestError as error:
            raise ConfigError(f"{key}: {error}") from error
    return good


def known(key: str) -> str:
    """The setting's name without those that the user gives: what a preset says is of a chat. Raises
    ConfigError for a setting that there is not."""
    setting, model = key, False
    match parts_of(key):
        case ("keymap", _):
            setting = "keymap.*"
        case ("presets", _, "system"):
            setting = "chat.system"
        case ("presets", _, "sampling", name):
            setting = f"sampling.{name}"
        case ("models", _, name):
            setting, model = _MODEL + name, True
    if setting in _TYPES:
        return setting
    if model:
        own = [name.removeprefix(_MODEL) for name in _TYPES if name.startswith(_MODEL)]
        near = difflib.get_close_matches(setting.removeprefix(_MODEL), own, n=1)
        told = f"did you mean {near[0]}?" if near else f"there are {', '.join(own)}"
        raise ConfigError(f"there is no setting {key}; {told}")
    if key in TABLES or key.rpartition(".")[0] in ("presets", "models"):
        raise ConfigError(f"{key} must be a table, written as [{key}]")
    near = difflib.get_close_matches(key, SETTINGS, n=1)
    if not near:  # the right name in the wrong table, or in none
        near = [name for name in SETTINGS if name.rpartition(".")[2] == key.rpartition(".")[2]]
    told = f"did you mean {near[0]}?" if near else "`ingot config` lists all settings"
    raise ConfigError(f"there is no setting {key}; {told}")


def _type(setting: str) -> Any:
    """Type of a setting without None, which stands for one that is not there."""
    hint = _TYPES[setting]
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    return arms[0] if get_origin(hint) in (Union, UnionType) and len(arms) == 1 else hint


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
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _list(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
