"""Values of options that need no converting, taken as they are: Typer 0.29 converts every value
with Pydantic, whose import takes longer than that of all else a command line needs."""

from typing import Any, Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

_theirs = TyperOption.process_value  # the same function for arguments


def take_plain() -> None:
    """From now on in this process; what commands take, and what they refuse, stays the same."""
    for kind in (TyperArgument, TyperOption):
        kind.process_value = _value  # type: ignore[assignment, method-assign]


def _value(param: Any, context: Any, value: Any) -> Any:
    kind: Any = param.type_descriptor.annotation
    if value is None and not param.required:
        value = () if param.multiple or param.nargs == -1 else None
    elif not (
        (kind is str and isinstance(value, str))
        or (get_origin(kind) is Literal and value in get_args(kind))
        or (isinstance(kind, type) and type(value) is kind and value is param.default)
    ):
        return _theirs(param, context, value)
    return value if param.callback is None else param.callback(context, param, value)
