"""What a user may say of the model, its settings and the answers; the command line makes these."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runtimes.request import Constraint, SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How answers are sampled; greedy unless a temperature is given."""

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    seed: int | None = None
    stop: list[str] | None = None

    def params(self) -> SamplingParams:
        """The engine's form. Raises RequestError for a value out of its range."""
        from runtimes.request import SamplingParams

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return SamplingParams(**{**values, "stop": tuple(self.stop or ())})


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which of a model's files is loaded, and with what settings."""

    recipe: str | None = None
    file: str | None = None
    context: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan decides, and what the user fixes of it; None leaves it open."""

    profile: Literal["latency", "balanced", "throughput", "memory"] = "balanced"
    bits: Literal["4", "8", "any"] | None = None
    kv_type: Literal["f16", "q8_0", "q4_0"] | None = None
    batch_tokens: int | None = None
    unified_kv: bool | None = None
    kv_tokens: int | None = None
    gpu_layers: int | None = None
    device_sampling: bool | None = None


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """What an answer must be; at most one is given."""

    json_schema: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: Path | None = None

    def constraint(self) -> Constraint | None:
        """Checked. Raises RequestError for one that cannot be used, or for two of them."""
        from runtimes.constraint import grammar_of
        from runtimes.errors import RequestError
        from runtimes.request import Constraint

        given: list[Constraint] = []
        if self.json_schema is not None:
            given.append(Constraint("json_schema", _schema_text(self.json_schema)))
        if self.regex is not None:
            given.append(Constraint("regex", self.regex))
        if self.choice:
            given.append(Constraint("choices", json.dumps(self.choice)))
        if self.grammar is not None:
            given.append(Constraint("grammar", _read(self.grammar, "--grammar")))
        if len(given) > 1:
            raise RequestError(
                "--json-schema, --regex, --choice and --grammar each say what an answer must be;"
                " give one of them"
            )
        for constraint in given:
            grammar_of(constraint)
        return given[0] if given else None


def _schema_text(value: str) -> str:
    if value.lstrip().startswith("{"):
        return value
    return _read(Path(value), "--json-schema")


def _read(path: Path, option: str) -> str:
    from runtimes.errors import RequestError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RequestError(f"{option}: {path} cannot be read: {said}") from error
