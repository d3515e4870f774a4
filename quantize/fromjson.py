"""Dataclasses: those that do not change, and from the JSON that ``dataclasses.asdict`` made."""

from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")
_MOST = 2**63
# What `from_json` raises for what it cannot read.
GARBLED = (LookupError, TypeError, ValueError, AttributeError)


def from_json(kind: type[_T], data: Any) -> _T:
    """An instance of the dataclass ``kind``. Names that it does not have are ignored, and fields
    with a default may be missing: files of older and newer programs can be read.

    Raises one of `GARBLED` for anything else.
    """
    try:
        values = {
            name: _value(hint, data[name])
            for name, hint in _hints(cast("Any", kind)).items()
            if name in data
        }
    except OverflowError as error:  # a whole number that is infinite
        raise ValueError(str(error)) from error
    return kind(**values)


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _value(hint: Any, data: Any) -> Any:
    origin, arms = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):  # a type, or None
        return None if data is None else _value(arms[0], data)
    if origin is Literal:
        if data not in arms:
            raise ValueError(f"{data!r} is none of {arms}")
        return data
    if origin is dict:
        return {str(name): _value(arms[1], value) for name, value in data.items()}
    if origin is list:
        return [_value(arms[0], value) for value in data]
    if origin is tuple and arms[1] is Ellipsis:
        return tuple(_value(arms[0], value) for value in data)
    if origin is tuple:
        return tuple(_value(arm, value) for arm, value in zip(arms, data, strict=True))
    if is_dataclass(hint):
        return from_json(cast("type[Any]", hint), data)
    value = hint(data)
    if isinstance(value, int) and abs(value) >= _MOST:
        raise ValueError(f"{str(value)[:20]}... is beyond any size or count")
    return value
