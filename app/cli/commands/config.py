"""`ingot config`: what the settings are, and changing one."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import typer

from app.cli.options import group, with_groups
from app.console import emit, emit_json, note
from app.options import argument, option

if TYPE_CHECKING:
    from app.config.settings import Loaded

config = group("Show or change the settings: a TOML file, and defaults for what it leaves out.")
_KEY = argument("A setting, such as sampling.temperature.", metavar="KEY")


@config.callback(invoke_without_command=True)
@with_groups
def show(
    context: typer.Context,
    as_json: bool = option(False, "Print one JSON object instead of lines.", "--json"),
) -> None:
    """Show or change the settings: a TOML file, and defaults for what it leaves out.

    Without a command: every setting, and where it comes from. INGOT_CONFIG names another file;
    variables such as INGOT_SAMPLING_TEMPERATURE come before the file.
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import replace

    from app.config.files import load

    loaded = load()
    if loaded.config.keymap or loaded.config.theme:
        from app.tui.keys import problems  # the app's keys: half a second to import

        loaded = replace(loaded, problems=(*loaded.problems, *problems(loaded.config)))
    rows = _rows(loaded)
    if as_json:
        values = {key: {"value": value, "source": source} for key, value, source in rows}
        told = {"file": str(loaded.path), "settings": values, "problems": loaded.problems}
        emit_json(told, indent=1)
    else:
        shown = [(f"{key} = {_toml(value)}", source) for key, value, source in rows]
        wide = max(len(line) for line, _ in shown if len(line) <= 50)
        for line, source in shown:
            emit(f"{line:<{wide}}  # {source}\n")
        there = "" if loaded.path.exists() else ", which is not there yet"
        note(f"the file is {loaded.path}{there}")
    loaded.checked()


@config.command()
def path() -> None:
    """Print where the file is, or would be."""
    from app.config.settings import config_path

    emit(f"{config_path()}\n")


@config.command()
@with_groups
def get(key: str = _KEY) -> None:
    """Print the value of one setting; nothing when it has none."""
    from app.config.files import load
    from app.config.settings import known

    known(key)  # raises where there is none
    loaded = load()
    found = {name: value for name, value, _ in _rows(loaded)}.get(key)
    if found is not None:
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        emit(f"{text}\n")
    loaded.checked()


@config.command("set", context_settings={"ignore_unknown_options": True})
@with_groups
def set_(
    key: str = _KEY,
    value: str = argument('Its new value; a list as ["a", "b"].'),
) -> None:
    """Write a setting to the file; its comments and the other settings stay as they are."""
    from app.config.files import set_value
    from app.config.settings import parse

    parsed = parse(key, value)
    written = set_value(key, parsed)
    note(f"{key} = {_toml(parsed)} in {written}")


@config.command()
@with_groups
def unset(key: str = _KEY) -> None:
    """Remove a setting from the file, so that its default applies."""
    from app.config.files import remove
    from app.config.settings import config_path, parts_of

    said = "is no longer in" if remove(parts_of(key)) else "is not in"
    note(f"{key} {said} {config_path()}")


def _rows(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """Name, value and source of every setting."""
    from app.config.settings import SETTINGS

    values = {key: attrgetter(key)(loaded.config) for key in SETTINGS} | loaded.values
    return [
        (key, list(v) if isinstance(v, tuple) else v, loaded.sources.get(key, "default"))
        for key, v in values.items()
    ]


def _toml(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)
