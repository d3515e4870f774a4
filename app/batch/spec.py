"""Options of a batch job: on the command line, in a form, and in the journal of an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from app.options import (
    MODEL_HELP,
    REPRODUCIBLE_HELP,
    AdapterOptions,
    ConstraintOptions,
    ModelOptions,
    PlanOptions,
    SamplingOptions,
    option,
)
from quantize.fromjson import GARBLED, from_json
from runtimes.settings import MOST_SLOTS
from runtimes.untrusted import Fields, JsonObject

if TYPE_CHECKING:
    from runtimes.request import SamplingParams

# In the place of IN they are commands: a file of such a name is written ./status.
WORDS = frozenset({"status", "merge"})
RowTask = Literal["generate", "score", "classify", "embed"]
# What a try answers.
TEST_ROWS = 3
TEST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Source of the rows; options that are not given are detected."""

    panel: ClassVar = "Input"
    task: RowTask = option(
        "generate",
        "What a row asks: an answer; how likely each of its continuations is; which of its labels"
        " fits (or of --choice, for all rows); its embedding. An OpenAI request says so itself.",
    )
    dimensions: int | None = option(
        None, "With --task embed: the first N numbers of each vector.", min=1, metavar="N"
    )
    field: str | None = option(
        None,
        "Field with the prompt: a name or a dotted path. A list of strings is a conversation whose"
        " turns are answered one after another.",
    )
    template: Path | None = option(
        None, "A Jinja2 template that makes the prompt from the row's fields.", metavar="FILE.j2"
    )
    input_format: Literal["auto", "jsonl", "text", "csv", "parquet", "folder"] = option(
        "auto", "Format of IN; auto detects it."
    )
    priority_field: str | None = option(
        None, "Field with a row's priority: critical, high, normal or low, or 0 to 3."
    )
    json_schema_field: str | None = option(
        None, "Field with a row's own JSON schema, which its answer must match."
    )
    limit: int | None = option(
        None, "Only the first N rows of IN; OUT then holds just those.", min=1, metavar="N"
    )
    strict: bool = option(
        False, "Refuse the job if a row is not valid, instead of writing an error to OUT."
    )
    dry_run: bool = option(
        False, "Only show rows, tokens, memory and time; load no weights, write nothing."
    )


@dataclass(frozen=True, slots=True)
class BatchAdapters(AdapterOptions):
    """Adapters that rows may name."""

    adapter: list[str] | None = option(
        None,
        "A LoRA adapter, a file that `quantize --adapter` wrote; repeatable, at most 8. A row's"
        " field `adapter` names the one that answers it, an OpenAI request's model does it as"
        " MODEL:NAME. A single one answers all rows that name none.",
        metavar="[NAME=]FILE",
    )


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """How many answers a row gets, and what is said about their tokens."""

    panel: ClassVar = "Samples"
    n: int = option(1, "Answers for each row.", "--n")
    best_of: int | None = option(
        None, "Answers to generate for each row; the --n likeliest are kept."
    )
    logprobs: bool = option(False, "The log-probability of each token.")
    top_logprobs: int = option(
        0, "With --logprobs: also the K likeliest tokens at each position.", metavar="K"
    )

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
    """Form of OUT, and the report."""

    panel: ClassVar = "Output"
    format: Literal["auto", "jsonl", "openai", "csv", "parquet"] = option(
        "auto", "Format of OUT; auto: by its suffix, or openai if IN has OpenAI batch requests."
    )
    input_fields: bool = option(
        True,
        "Copy the fields of each row of IN to its row of OUT.",
        "--input-fields/--no-input-fields",
    )
    unordered: bool = option(
        False, "Append to OUT as rows finish, instead of writing it in order at the end."
    )
    shard: str | None = option(
        None, "Only part I of N of the rows; `ingot batch merge` joins the outputs.", metavar="I/N"
    )
    report: Path | None = option(None, "Write all figures to FILE as JSON.", metavar="FILE")


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """Limits of a row and of the job, and the engines."""

    panel: ClassVar = "Running"
    row_timeout: float | None = option(
        None, "A row that takes longer fails.", min=0.001, metavar="SECONDS"
    )
    retries: int = option(
        1, "How often a row is asked again after a timeout or an error of the engine.", min=0
    )
    max_time: float | None = option(
        None,
        "Start no row after this time; the next run does the rest (exit code 1).",
        min=0.001,
        metavar="SECONDS",
    )
    engines: str | None = option(
        None,
        "Engines that share the job, each with its GPU or its share of the cores; auto is one for"
        " each GPU or NUMA node (on Ray: GPU or node).",
        metavar="N|auto",
        show_default="1; auto on Ray",
    )
    ray: str | None = option(
        None,
        "Run the engines on a Ray cluster: its address, auto for the one that this machine is part"
        " of, or local to start one here. The model must be at the same path on each node.",
        metavar="ADDRESS",
    )
    skip_failed: bool = option(
        False, "Rows that failed in an earlier run stay failed, instead of being tried again."
    )


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """A smaller model that is asked first."""

    panel: ClassVar = "Two models"
    first: str | None = option(
        None,
        "A smaller model that answers every row first, named as MODEL is; MODEL answers the rows"
        " that it is not sure of. How sure it must be is learned on rows that both answer.",
        metavar="SMALL",
    )
    agree: float = option(
        0.95,
        "With --first: at least this share of the answers that it keeps is as MODEL's.",
        min=0.01,
        max=0.999,
    )
    confidence: float = option(0.99, "With --first: how certain that is.", min=0.01, max=0.9999)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Relative paths are relative to the folder that the job runs in; ``input`` and ``output`` are
    - for standard input and output. ``test`` is a try with a few rows."""

    panel: ClassVar = None
    input: str = field(
        metadata={
            "metavar": "IN",
            "help": "Prompts: JSONL, an OpenAI batch, text with a prompt a line, CSV, Parquet (all"
            " but the last also packed with gzip or zstd), or a folder of texts; - for stdin.",
        }
    )
    output: str | None = field(
        default=None,
        metadata={
            "metavar": "OUT",
            "help": "A record for each row in the order of IN: JSONL, CSV or Parquet by its"
            " suffix; - for stdout.",
        },
    )
    model: str | None = option(None, f"{MODEL_HELP} Required.", "--model", "-m")
    system: str | None = option(None, "A system message before each prompt.")
    raw: bool = option(False, "Send prompts as they are, without the chat template.")
    slots: int | None = option(
        None, "Rows that run together; 16 if memory allows.", min=1, max=MOST_SLOTS
    )
    reproducible: bool = option(
        False,
        REPRODUCIBLE_HELP,
        "--reproducible/--no-reproducible",
        rich_help_panel=SamplingOptions.panel,
    )
    test: bool = option(
        False, f"Try it: {TEST_ROWS} rows, {TEST_TOKENS} tokens each, to stdout; OUT stays."
    )
    force: bool = option(
        False, "Answer every row again if model or sampling changed; keep the old answers."
    )
    fresh: bool = option(False, "Drop OUT's old answers; compute all rows again.")
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    constraints: ConstraintOptions = field(default_factory=ConstraintOptions)
    samples: SampleOptions = field(default_factory=SampleOptions)
    cascade: CascadeOptions = field(default_factory=CascadeOptions)
    rows: InputOptions = field(default_factory=InputOptions)
    out: OutputOptions = field(default_factory=OutputOptions)
    running: RunningOptions = field(default_factory=RunningOptions)
    options: ModelOptions = field(default_factory=ModelOptions)
    adapters: BatchAdapters = field(default_factory=BatchAdapters)
    engine: PlanOptions = field(default_factory=PlanOptions)


def said(spec: Any) -> Iterator[tuple[str, Any]]:
    """Values of a spec, ready for JSON, by the names of their fields; those of a group in the place
    of the group."""
    for one in fields(spec):
        value = getattr(spec, one.name)
        if is_dataclass(value):
            yield from said(value)
        else:
            value = str(value) if isinstance(value, Path) else value
            yield one.name, list(value) if isinstance(value, tuple) else value


def spec_json(spec: BatchSpec) -> JsonObject:
    """Values of a spec that are not the usual ones, as a journal has them."""
    usual = dict(said(BatchSpec("")))
    return {name: value for name, value in said(spec) if value != usual[name]}


def spec_from(values: Fields) -> BatchSpec:
    """Read back the values of ``spec_json``, which anybody may have written. Raises ValueError for
    one that is not of its field's type."""
    told = {"input": "", **values}
    groups = {one.name: told for one in fields(BatchSpec) if is_dataclass(one.default_factory)}
    try:
        spec = from_json(BatchSpec, told | groups)
    except GARBLED as error:
        raise ValueError(f"this is no job: {error}") from error
    for name, value in said(spec):  # "3" is no number, and 1 is not true
        given = told.get(name, value)
        if given != value or isinstance(given, bool) != isinstance(value, bool):
            raise ValueError(f"{name} is {str(given)[:40]}")
    return spec
