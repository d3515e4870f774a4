"""Groups of options: a dataclass of the core becomes the flags of a command.

ModelGroup = Annotated[ModelOptions, group("Model", recipe=typer.Option(help="..."), ...)]

@with_groups
def run(options: ModelGroup, ...): ...
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """What `--help` says of each field; a field's type and default are the dataclass's own."""

    options: dict[str, Any]


def group(panel: str, **options: Any) -> _Group:
    """The ``typer.Option`` of each field, shown together under ``panel``."""
    for option in options.values():
        option.rich_help_panel = panel
    return _Group(options)


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as Typer sees it: each group replaced by the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if said and isinstance(said[0], _Group):
            groups[name] = kind
            parameters += _flags(kind, said[0])
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @wraps(command)
    def flat(**values: Any) -> Any:
        collected = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        return command(**values, **collected)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _flags(kind: type[Any], said: _Group) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[hints[field.name], said.options[field.name]],
        )
