"""Options that several commands share, each defined once.

A command takes a whole group as one parameter whose type is a dataclass of Typer options:

    @with_groups
    def run(model: ModelArgument, sampling: SamplingOptions, ...): ...
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from runtimes.settings import MOST_THREADS

if TYPE_CHECKING:
    from runtimes.request import SamplingParams

_SAMPLING = "Sampling"
_MODEL = "Model"
_PLAN = "Settings (what is not given here comes from `ingot plan`, if it was run for MODEL)"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How answers are sampled; greedy unless a temperature is given."""

    max_tokens: Annotated[
        int, typer.Option(help="Most tokens in an answer.", rich_help_panel=_SAMPLING)
    ] = 512
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            "-t",
            help="0 always takes the likeliest token.",
            rich_help_panel=_SAMPLING,
        ),
    ] = 0.0
    top_k: Annotated[
        int, typer.Option(help="Only the K likeliest tokens; 0 for all.", rich_help_panel=_SAMPLING)
    ] = 0
    top_p: Annotated[
        float,
        typer.Option(help="Only the likeliest tokens up to this sum.", rich_help_panel=_SAMPLING),
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(
            help="Only tokens this likely, relative to the likeliest.", rich_help_panel=_SAMPLING
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages repetition.", rich_help_panel=_SAMPLING)
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from tokens seen once.", rich_help_panel=_SAMPLING)
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted for each time seen.", rich_help_panel=_SAMPLING)
    ] = 0.0
    min_tokens: Annotated[
        int,
        typer.Option(
            min=0, help="No end of the answer before this many tokens.", rich_help_panel=_SAMPLING
        ),
    ] = 0
    seed: Annotated[
        int | None,
        typer.Option(help="Makes sampling repeatable.", rich_help_panel=_SAMPLING),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; repeatable.", rich_help_panel=_SAMPLING),
    ] = None

    def params(self) -> SamplingParams:
        """The engine's form. Raises RequestError for a value out of its range."""
        from runtimes.request import SamplingParams

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return SamplingParams(**{**values, "stop": tuple(self.stop or ())})


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which of a model's files is loaded, and with what settings."""

    recipe: Annotated[
        str | None,
        typer.Option(
            help="The built file of this recipe, such as q8_0 or onnx-int4.", rich_help_panel=_MODEL
        ),
    ] = None
    file: Annotated[
        str | None,
        typer.Option(help="The built file of this name.", rich_help_panel=_MODEL),
    ] = None
    context: Annotated[
        int | None,
        typer.Option(
            min=8, help="Tokens that a prompt and its answer may have.", rich_help_panel=_MODEL
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_THREADS, help="Processor threads.", rich_help_panel=_MODEL),
    ] = None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan decides, and what the user fixes of it; None leaves it open."""

    profile: Annotated[
        Literal["latency", "balanced", "throughput", "memory"],
        typer.Option(help="What matters most.", rich_help_panel=_PLAN),
    ] = "balanced"
    bits: Annotated[
        Literal["4", "8", "any"] | None,
        typer.Option(
            help="Files of this width; 4 where there are any. Widths differ in accuracy.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    kv_type: Annotated[
        Literal["f16", "q8_0", "q4_0"] | None,
        typer.Option(help="llama.cpp's keys and values.", rich_help_panel=_PLAN),
    ] = None
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a step.", rich_help_panel=_PLAN),
    ] = None
    unified_kv: Annotated[
        bool | None,
        typer.Option(
            "--unified-kv/--split-kv",
            help="llama.cpp: one cache for all slots, or one for each.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=8,
            help="llama.cpp with --unified-kv: tokens that all slots may hold together, where less"
            " than slots x context will do.",
            rich_help_panel=_PLAN,
        ),
    ] = None
    gpu_layers: Annotated[
        int | None,
        typer.Option(min=-1, help="llama.cpp: layers on the GPU.", rich_help_panel=_PLAN),
    ] = None
    device_sampling: Annotated[
        bool | None,
        typer.Option(
            "--device-sampling/--host-sampling",
            help="llama.cpp: find the likeliest tokens on the GPU, or copy all logits from it.",
            rich_help_panel=_PLAN,
        ),
    ] = None


Reproducible = Annotated[
    bool,
    typer.Option(
        "--reproducible/--no-reproducible",
        help="The same answers to the last bit on this machine, whatever else runs, was stopped or"
        " is cached; slower.",
        rich_help_panel=_SAMPLING,
    ),
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command as Typer sees it: each dataclass parameter replaced by the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            groups[name] = hint
            parameters += _options(hint)
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @wraps(command)
    def flat(**values: Any) -> None:
        collected = {
            name: group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
            for name, group in groups.items()
        }
        command(**values, **collected)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
