"""Options in dataclasses of the core, each field a flag of the command that takes one. What
`--help` says of a field stands beside it (``app.options.option``), their headline in ``panel``.

@with_groups
def run(options: ModelOptions, ...): ...
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as Typer sees it: each dataclass replaced by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _flags(hints[name])
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


def _flags(kind: Any) -> Iterator[inspect.Parameter]:
    """Flags of a group; those of the groups in it come first. A field without a help is no flag."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            yield from _flags(hints[field.name])
    for field in fields(kind):
        if is_dataclass(hints[field.name]) or not field.metadata:
            continue
        said = {"rich_help_panel": kind.panel, **field.metadata}
        flags = said.pop("flags", None)
        if flags == () and field.default is False:  # Typer would add a --no-... to it
            flags = (f"--{field.name.replace('_', '-')}",)
        option: Any = typer.Argument(**said) if flags is None else typer.Option(*flags, **said)
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=Annotated[hints[field.name], option],
        )


def _collected(kind: Any, values: dict[str, Any]) -> Any:
    """The dataclass from the flags among ``values``, which leave it."""
    hints = get_type_hints(kind)
    return kind(
        **{
            field.name: _collected(hint, values) if is_dataclass(hint) else values.pop(field.name)
            for field in fields(kind)
            for hint in [hints[field.name]]
            if is_dataclass(hint) or field.metadata
        }
    )
