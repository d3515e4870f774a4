"""Values of options that need no converting, taken as they are, and plain numbers: Typer 0.29
converts every value with Pydantic, whose import takes longer than that of all else a command line
needs."""

import re
from typing import Any, Literal, get_args, get_origin

from typer.core import TyperArgument, TyperOption

_theirs = TyperOption.process_value  # the same function for arguments

_PLAIN = {
    int: re.compile(r"0|[1-9][0-9]{0,8}"),
    float: re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,9})?"),
}


def take_plain() -> None:
    """From now on in this process; what commands take, and what they refuse, stays the same."""
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
    """Whether it is digits and in range: any other number is for Typer to take or to refuse."""
    if kind not in _PLAIN or not isinstance(value, str) or not _PLAIN[kind].fullmatch(value):
        return False
    number = kind(value)
    return (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
