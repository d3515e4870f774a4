"""Options of commands. Each stands once: as a field of a dataclass of the core, or as the default
of a parameter, with what `--help` says of it (``app.options.option`` and ``argument``).

@with_groups
def run(options: ModelOptions, quiet: bool = option(False, "No figures on stderr."), ...): ...
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperOption

from app.options import MODEL_HELP, REPRODUCIBLE_HELP, SamplingOptions, argument, option, parts
from runtimes.errors import RequestError

MODEL = argument(MODEL_HELP, metavar="MODEL")
SYSTEM = option(None, "A system message before the prompt.")
REPRODUCIBLE = option(
    False,
    REPRODUCIBLE_HELP,
    "--reproducible/--no-reproducible",
    rich_help_panel=SamplingOptions.panel,
)
AS_OBJECT = option(False, "One JSON object on stdout.", "--json")
AS_TABLE = option(False, "Print one JSON object instead of a table.", "--json")
YES = option(False, "Do not ask.", "--yes", "-y")


def group(help: str) -> typer.Typer:
    """A command that has commands."""
    return typer.Typer(help=help, context_settings={"help_option_names": ["-h", "--help"]})


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as Typer sees it: each dataclass replaced by its fields, each field by a flag."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += flags_of(hints[name])
        elif isinstance(parameter.default, Field):
            parameters.append(_flag(name, hints[name], parameter.default))
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=keyword))

    @wraps(command)
    def flat(**values: Any) -> Any:
        collected = {name: _collected(kind, values) for name, kind in groups.items()}
        return command(**values, **collected)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def flags_of(kind: Any) -> Iterator[inspect.Parameter]:
    """Flags of a group; those of the groups in it come first. A field without a help is no flag."""
    hints = get_type_hints(kind)
    for field in sorted(fields(kind), key=lambda one: not is_dataclass(hints[one.name])):
        if is_dataclass(hints[field.name]):
            yield from flags_of(hints[field.name])
        elif field.metadata:
            yield _flag(field.name, hints[field.name], field, kind.panel)


def _flag(name: str, hint: Any, field: Any, panel: str | None = None) -> inspect.Parameter:
    said = {"rich_help_panel": panel, **field.metadata}
    said.pop("setting", None)
    flags = said.pop("flags", None)
    if check := said.pop("check", None):
        said["callback"] = _checked(check)
    if flags == () and field.default is False:  # Typer would add a --no-... to it
        flags = (f"--{name.replace('_', '-')}",)
    found: Any = typer.Argument(**said) if flags is None else typer.Option(*flags, **said)
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    if get_origin(hint) is tuple:
        hint, default = list[str] | None, None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, found],
    )


def _checked(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    def callback(value: Any) -> Any:
        try:
            for one in parts(*value) if isinstance(value, list) else [value]:
                if one is not None:
                    check(one)
        except RequestError as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return callback


def _collected(kind: Any, values: dict[str, Any]) -> Any:
    """The dataclass from the flags among ``values``, which leave it."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            found[field.name] = _collected(hints[field.name], values)
        elif field.metadata:
            value = values.pop(field.name)
            repeated = get_origin(hints[field.name]) is tuple
            found[field.name] = tuple(value or ()) if repeated else value
    return kind(**found)


# Values that need no converting are taken as they are, and plain numbers: Typer 0.29 converts every
# value with Pydantic, whose import takes longer than that of all else a command line needs.

_theirs = TyperOption.process_value  # the same function for arguments

_PLAIN = {
    int: re.compile(r"0|[1-9][0-9]{0,8}"),
    float: re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?"),
}


def take_plain() -> None:
    """Take plain values as they are, in this process from now on; commands accept and refuse the
    same as before."""
    for kind in (TyperArgument, TyperOption):
        kind.process_value = _value  # type: ignore[assignment, method-assign]


def _value(param: Any, context: Any, value: Any) -> Any:
    kind: Any = param.type_descriptor.annotation
    if value is None and not param.required:
        value = () if param.multiple or param.nargs == -1 else None
    elif _is_plain_number(kind, value, param.type_descriptor.parameter_info):
        value = kind(value)
    elif not (
        (kind is str and isinstance(value, str))
        or (get_origin(kind) is Literal and value in get_args(kind))
        or (isinstance(kind, type) and type(value) is kind and value is param.default)
    ):
        return _theirs(param, context, value)
    return value if param.callback is None else param.callback(context, param, value)


def _is_plain_number(kind: Any, value: Any, info: Any) -> bool:
    """True for digits in range; Typer takes or refuses any other number."""
    if kind not in _PLAIN or not isinstance(value, str) or not _PLAIN[kind].fullmatch(value):
        return False
    number = kind(value)
    return (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
