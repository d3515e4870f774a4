"""Groups of options: a dataclass of the core becomes the flags of a command. What `--help` says of
a field stands beside it (``app.options.option``).

ModelGroup = Annotated[ModelOptions, Group("Model")]

@with_groups
def run(options: ModelGroup, ...): ...
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The fields of a dataclass as flags, shown together under ``panel``."""

    panel: str


def with_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command as Typer sees it: each group replaced by the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if said and isinstance(said[0], Group):
            groups[name] = kind
            parameters += _flags(kind, said[0].panel)
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


def _flags(kind: type[Any], panel: str) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        said = dict(field.metadata)
        option: Any = typer.Option(*said.pop("flags"), rich_help_panel=panel, **said)
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[hints[field.name], option],
        )
