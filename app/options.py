"""Options of the model, its settings and the answers; the command line makes these of its flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from runtimes.errors import RequestError
from runtimes.request import Constraint, SamplingParams, UserSampling, with_default
from runtimes.settings import KV_HELP, MOST_THREADS, ROPE_HELP, kv_pair, rope_scaling

_Value = TypeVar("_Value")
_Options = TypeVar("_Options", "ModelOptions", "PlanOptions")


def option(default: _Value, help: str, *flags: str, **more: Any) -> _Value:
    """A field with what `--help` says of its flag, in the ``panel`` of its class; ``flags`` are the
    names of one that is not called as the field alone, ``more`` is for ``typer.Option``; ``check``
    among them raises RequestError for a value that is none."""
    return field(default=default, metadata={"flags": flags, "help": help, **more})


def argument(help: str, default: Any = MISSING, **more: Any) -> Any:
    """A field that is given by its place; ``more`` is for ``typer.Argument``."""
    return field(default=default, metadata={"help": help, **more})


MODEL_HELP = (
    "A folder that `quantize` wrote, a .gguf file, an ONNX folder, or a name that `ingot models`"
    " lists."
)
DRAFT_HELP = (
    "A smaller model of the same vocabulary, named as MODEL is: what it guesses is verified several"
    " tokens a step, where that is faster. Implies --speculation."
)
REPRODUCIBLE_HELP = (
    "The same answers to the last bit on this machine, whatever runs beside them, was interrupted"
    " or is cached. Slower."
)


@dataclass(frozen=True, slots=True)
class SamplingOptions(UserSampling):
    """Sampling of answers; greedy unless a temperature is given."""

    panel: ClassVar = "Sampling"
    max_tokens: int = with_default("max_tokens", 512)
    min_tokens: int = option(0, "Do not end an answer before this many tokens.", min=0)

    def params(self) -> SamplingParams:
        """The engine's form. Raises RequestError for a value out of its range."""
        return SamplingParams(**asdict(self))


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The file of a model that is loaded, and its settings."""

    panel: ClassVar = "Model"
    recipe: str | None = option(None, "The built file of this recipe, such as q8_0 or onnx-int4.")
    file: str | None = option(None, "The built file of this name.")
    context: int | None = option(
        None, "Maximum number of tokens of a prompt and its answer.", min=8
    )
    threads: int | None = option(None, "Processor threads.", min=1, max=MOST_THREADS)
    rope: str | None = option(
        None,
        f"llama.cpp: a context longer than the model's, {ROPE_HELP}. All answers change.",
        metavar="KIND:FACTOR",
        check=rope_scaling,
    )


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """LoRA adapters that are loaded beside the model."""

    panel: ClassVar = "Model"
    adapter: list[str] | None = option(
        None,
        "A LoRA adapter beside the model, a file that `quantize --adapter` wrote; repeatable, at"
        " most 8. NAME is the file's own by default.",
        metavar="[NAME=]FILE",
    )


@dataclass(frozen=True, slots=True)
class ChatAdapters(AdapterOptions):
    """Adapters that a chat may use."""

    adapter: list[str] | None = option(
        None,
        "A LoRA adapter of MODEL, a file that `quantize --adapter` wrote; repeatable, at most 8."
        " The first one answers until /adapter NAME chooses another.",
        metavar="[NAME=]FILE",
    )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Settings that a plan decides unless the user fixes them; None leaves one open."""

    panel: ClassVar = (
        "Settings (what is not given here comes from `ingot plan`, if it was run for MODEL)"
    )
    profile: Literal["latency", "balanced", "throughput", "memory"] = option(
        "balanced", "What to optimize for."
    )
    bits: Literal["4", "8", "any"] | None = option(
        None, "Only files of this width; 4 by default, if there are any. Widths differ in accuracy."
    )
    kv_type: str | None = option(
        None, f"llama.cpp: type of the KV cache, {KV_HELP}.", metavar="TYPE", check=kv_pair
    )
    flash_attention: Literal["auto", "on", "off"] | None = option(
        None, "llama.cpp's kernel of attention; auto: as `ingot doctor` found it faster here."
    )
    batch_tokens: int | None = option(None, "Maximum number of tokens per step.", min=1)
    unified_kv: bool | None = option(
        None, "llama.cpp: one KV cache for all slots, or one for each.", "--unified-kv/--split-kv"
    )
    kv_tokens: int | None = option(
        None,
        "llama.cpp with --unified-kv: tokens that all slots share, if less than slots x context is"
        " enough.",
        min=8,
    )
    gpu_layers: int | None = option(None, "llama.cpp: layers on the GPU.", min=-1)
    device: str | None = option(
        None,
        "Where to compute: cpu, or a device's name, as `ingot doctor` lists them; for llama.cpp"
        " several with commas between them. By itself it takes all GPUs.",
    )
    device_sampling: bool | None = option(
        None,
        "Find the likeliest tokens on the GPU, or copy all logits from it.",
        "--device-sampling/--host-sampling",
    )
    speculation: bool = option(
        False, "Compute several tokens of a row in a step, where that is faster."
    )
    draft: str | None = option(None, DRAFT_HELP, metavar="FILE")


# What is said of each flag.
FLAGS: Mapping[str, Mapping[str, Any]] = {
    item.name: item.metadata for owner in (ModelOptions, PlanOptions) for item in fields(owner)
}


def with_own(given: _Options, own: Mapping[str, Any]) -> _Options:
    """The options with a model's ``own`` settings where the command line has said nothing."""
    said = {
        item.name: own[item.name]
        for item in fields(given)
        if item.name in own and getattr(given, item.name) == item.default
    }
    return replace(given, **said)


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """Constraints of an answer; at most one is given."""

    panel: ClassVar = "Constrain the answer (one of these)"
    json_schema: str | None = option(
        None, "JSON that matches this schema: a file, or the schema itself.", metavar="FILE"
    )
    regex: str | None = option(None, "Text that matches this regular expression.")
    choice: list[str] | None = option(None, "One of these texts; repeatable.", metavar="TEXT")
    grammar: Path | None = option(
        None, "Text that matches this grammar (Lark, in llguidance's dialect).", metavar="FILE"
    )

    def constraint(self) -> Constraint | None:
        """Checked. Raises RequestError for one that cannot be used, or for two of them."""
        from app.here import given_text

        schema, grammar = self.json_schema, self.grammar
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = given_text(Path(schema))
        return only_constraint(
            {
                "json_schema": schema,
                "regex": self.regex,
                "choices": json.dumps(self.choice) if self.choice else None,
                "grammar": given_text(grammar) if grammar else None,
            },
            "--json-schema, --regex, --choice and --grammar each say what an answer must be; give"
            " one of them",
        )


def only_constraint(sources: Mapping[Any, str | None], several: str) -> Constraint | None:
    """The constraint of the one kind that has a source, checked. Raises RequestError for one that
    cannot be used, and with the words ``several`` for more than one."""
    from runtimes.grammars import grammar_of

    given = [Constraint(kind, text) for kind, text in sources.items() if text is not None]
    if len(given) > 1:
        raise RequestError(several)
    for constraint in given:
        grammar_of(constraint)
    return given[0] if given else None


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Tools of MCP servers that an answer may call."""

    panel: ClassVar = "Tools"
    tools: str | None = option(
        None,
        "Servers of the settings (mcp.servers.NAME) whose tools may be called; a terminal asks"
        " before each call.",
        metavar="NAME[,NAME]",
    )
    allow_tools: str | None = option(
        None,
        "Do not ask for these tools, or those of these servers; `all` for every tool. What is not"
        " allowed so is refused where there is no terminal.",
        metavar="NAME[,NAME]",
    )
    require_tool: bool = option(False, "The first answer has to be a call of a tool.")


def parts(*values: str | None) -> list[str]:
    """Parts that commas separate in the values of an option, each once."""
    said = (part.strip() for value in values if value for part in value.split(","))
    return [*dict.fromkeys(filter(None, said))]
