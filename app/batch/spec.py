"""All that is said of a batch job: by the command line, by a form, or by an earlier run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app.options import ConstraintOptions, ModelOptions, PlanOptions, SamplingOptions

if TYPE_CHECKING:
    from app.batch.input.prompting import Prompting
    from runtimes.request import SamplingParams

# In the place of IN they are commands: a file of such a name is written ./status.
WORDS = frozenset({"status", "merge"})
# What a try answers.
TEST_ROWS = 3
TEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where rows come from; what is not said is detected."""

    field: str | None = None
    template: Path | None = None
    input_format: Literal["auto", "jsonl", "text", "csv", "parquet", "folder"] = "auto"
    priority_field: str | None = None
    json_schema_field: str | None = None
    limit: int | None = None
    strict: bool = False
    dry_run: bool = False

    def prompting(self, sampling: SamplingParams, most_tokens: int | None = None) -> Prompting:
        """How rows become tasks. Raises RequestError for a template that cannot be used, or that
        contradicts --field."""
        from app.batch.input.prompting import Prompting
        from app.batch.input.template import RowTemplate
        from runtimes.errors import RequestError

        if self.template is not None and self.field is not None:
            raise RequestError("--field and --template both make the prompt; give one of them")
        template = RowTemplate.load(self.template) if self.template is not None else None
        return Prompting(
            self.field,
            template,
            self.priority_field,
            sampling,
            most_tokens,
            self.json_schema_field,
        )


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How many answers a row gets, and what is said about their tokens."""

    n: int = 1
    best_of: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0

    def apply(self, params: SamplingParams) -> SamplingParams:
        """The parameters with these. Raises RequestError for a value out of its range."""
        return replace(
            params,
            n=self.n,
            best_of=self.best_of,
            logprobs=self.logprobs or self.top_logprobs > 0,
            top_logprobs=self.top_logprobs,
        )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What OUT is, and what is told about the job."""

    format: Literal["auto", "jsonl", "openai", "csv", "parquet"] = "auto"
    input_fields: bool = True
    unordered: bool = False
    shard: str | None = None
    report: Path | None = None


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """What a row and the job may take."""

    row_timeout: float | None = None  # seconds, as are those of max_time
    retries: int = 1  # how often a row is asked again after a timeout or an error of the engine
    max_time: float | None = None
    engines: str | None = None
    ray: str | None = None
    skip_failed: bool = False


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Relative paths are relative to the folder that the job runs in; ``input`` and ``output`` are
    - for standard input and output. ``test`` is a try with a few rows."""

    input: str
    output: str | None = None
    model: str | None = None
    system: str | None = None
    raw: bool = False
    slots: int | None = None
    reproducible: bool = False
    test: bool = False
    force: bool = False
    fresh: bool = False
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    constraints: ConstraintOptions = field(default_factory=ConstraintOptions)
    samples: SampleOptions = field(default_factory=SampleOptions)
    rows: InputOptions = field(default_factory=InputOptions)
    out: OutputOptions = field(default_factory=OutputOptions)
    running: RunningOptions = field(default_factory=RunningOptions)
    options: ModelOptions = field(default_factory=ModelOptions)
    engine: PlanOptions = field(default_factory=PlanOptions)
