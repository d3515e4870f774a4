"""Forecast of a job without loading weights: its rows, tokens, memory and time."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from app.batch.input.scan import InputScan, RefusedRows, scan
from app.batch.journal.journal import Entries
from app.batch.schedule.engines import JobPlan, free_memory, placements, slots_for
from app.batch.spec import BatchSpec
from app.figures import duration, rate
from app.models.planning import overrides, plan_files, task_for
from app.openai.prepare import prepare
from app.openai.task import Task
from app.openai.validation import Problem
from app.prompts import PromptStyle, refusal_code
from runtimes.api import T, TextEncoder
from runtimes.backend import MemoryEstimate
from runtimes.engine.kv_cache import LEAST_SHARED
from runtimes.engine.prefix_pool import common_prefix
from runtimes.errors import RequestError
from runtimes.grammars import check_params
from runtimes.models.memory import DEFAULT_CONTEXT, estimate, gib
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import tokenizer_of
from runtimes.planner.candidates import Overrides
from runtimes.planner.known import load_plan
from runtimes.planner.plan import TRIAL_TOKENS, Figures
from runtimes.request import SamplingParams
from runtimes.settings import PROMPT_CHUNK, RunnerSettings
from runtimes.untrusted import JsonObject

_NOTE_SECONDS = 10.0


class FileEncoder(TextEncoder):
    """Turns text into the tokens that an engine would; an ``runtimes.api.Encoder``.

    Raises ModelError when the file's tokenizer cannot be read.
    """

    def __init__(self, model: ModelFile, settings: RunnerSettings) -> None:
        self._model = model
        self.tokenizer = tokenizer_of(model)
        context = min(settings.context or DEFAULT_CONTEXT, model.context_length)
        self.context = min(context, settings.kv_tokens or context)

    @property
    def model(self) -> ModelFile:
        """The file."""
        return self._model

    def encoded(self, function: Callable[..., T], *arguments: Any) -> T:
        """See ``TextEncoder``."""
        return function(self.tokenizer, *arguments)


@dataclass(slots=True)
class Lengths:
    """Tokens over the rows that can be asked."""

    context: int  # of the model, as the job has it
    chunk: int  # what is reused is a multiple of so many tokens
    rows: int = 0
    # Of a conversation's later turns only their own text: the answers between are not there yet.
    prompt_tokens: int = 0
    answer_tokens: int = 0  # of all answers if each were as long as it may be
    longest: int = 0  # tokens of the longest first prompt
    longest_where: str = ""
    common: list[int] | None = None  # tokens that all prompts begin with; None before the first
    prompts: int = 0  # of rows and their parts, that run without an adapter of their own
    # Rows that are valid, and cannot be asked of this model in this context.
    unfit: RefusedRows = field(default_factory=RefusedRows)

    @property
    def depth(self) -> int | None:
        """The mean tokens in a row's KV cache while it decodes: its prompt and half of its longest
        answer. None without rows."""
        return (self.prompt_tokens + self.answer_tokens // 2) // self.rows if self.rows else None

    def begin_with(self, ids: list[int]) -> None:
        """Take in another prompt's tokens."""
        self.prompts += 1
        self.common = list(ids) if self.common is None else self.common
        del self.common[common_prefix(self.common, ids) :]

    @property
    def read_once(self) -> int:
        """Tokens of a beginning that all prompts share, and that is worth keeping; else 0."""
        shared = len(self.common or ()) // self.chunk * self.chunk
        return shared if self.prompts > 1 and shared >= LEAST_SHARED else 0

    @property
    def saved(self) -> int:
        """Tokens that need not be computed because the first prompt's beginning is kept."""
        return self.read_once * (self.prompts - 1)


def measure(plan: JobPlan, note: Callable[[str], None]) -> Lengths:
    """Tokenize every valid row, with a ``note`` now and then.

    Raises ModelError for a model whose tokenizer cannot be read, and with --strict RequestError,
    naming the first ones, if valid rows do not fit model and context.
    """
    source, sampling, settings = plan.source, plan.settings.sampling, plan.choice.settings
    encoder = FileEncoder(plan.choice.file, settings)
    style = PromptStyle(plan.settings.system, plan.settings.raw)
    found = Lengths(encoder.context, PROMPT_CHUNK if settings.reproducible else 1)
    noted = time.monotonic()
    for row in source.rows():
        if row.problem is not None:
            continue
        try:
            tasks = row.task.parts or [row.task]
            sizes = [_sizes(part, encoder, style, part.sampling or sampling) for part in tasks]
        except RequestError as error:
            found.unfit.add(row.where, Problem(refusal_code(error), str(error)))
            continue
        found.rows += 1
        for part, (prompt, answers, ids) in zip(tasks, sizes, strict=True):
            found.prompt_tokens += prompt
            found.answer_tokens += answers
            if part.embed is None and row.task.adapter is None:  # a text is embedded whole
                found.begin_with(ids)
            if len(ids) > found.longest:
                found.longest, found.longest_where = len(ids), row.where
        if time.monotonic() - noted > _NOTE_SECONDS:
            noted = time.monotonic()
            note(f"{found.rows:,} rows counted, {found.prompt_tokens:,} tokens")
    if plan.spec.rows.strict and found.unfit.count:
        named = found.unfit.lines(source.name, "that do not fit")
        said = f"--strict: {found.unfit.count:,} rows do not fit; nothing was done"
        raise RequestError("\n".join([*named, said]))
    return found


def _sizes(
    task: Task, encoder: FileEncoder, style: PromptStyle, params: SamplingParams
) -> tuple[int, int, list[int]]:
    """Number of tokens of its first prompt and the texts of later turns, that of its answers at
    most, and the tokens of its first prompt. Raises RequestError."""
    check_params(params, encoder.tokenizer.vocab_size)
    said = prepare(task, encoder, params, style)
    first, most = len(said.ids), said.params
    if len(task.turns) > 1 and (style.raw or task.raw):
        raise RequestError("a conversation needs the chat template; --raw takes a single prompt")
    later = sum(len(encoder.encode(text)) for text in task.turns[1:])
    answer = min(most.max_tokens, encoder.context - first)
    return first + later, answer * most.samples * task.asked, said.ids


@dataclass(frozen=True, slots=True)
class DryRun:
    """``figures`` are those that the plan was chosen by, None without a plan; ``free_bytes`` what
    memory has now; ``slots`` and ``memory`` are those of each of ``engines``."""

    plan: JobPlan
    found: InputScan
    lengths: Lengths
    slots: int
    memory: MemoryEstimate
    free_bytes: int
    figures: Figures | None
    engines: int

    @property
    def invalid(self) -> int:
        """Rows that would become errors."""
        return self.found.invalid + self.lengths.unfit.count

    @property
    def most_seconds(self) -> float | None:
        """The time it takes if every answer is as long as it may be, at the plan's speeds: prompts
        one after another, answers of all slots together. None without a plan."""
        if self.figures is None or not self.lengths.rows:
            return None
        measured = self.figures.decode_tps
        together = max((rows for rows in measured if rows <= self.slots), default=min(measured))
        return (
            self.lengths.prompt_tokens / self.figures.prefill_tps
            + self.lengths.answer_tokens / measured[together]
        )

    def as_json(self) -> JsonObject:
        """For ``--json``."""
        lengths, seconds = self.lengths, self.most_seconds
        problems = [*self.found.refused.first, *lengths.unfit.first]
        return {
            "rows": self.found.rows,
            "valid": self.found.rows - self.invalid,
            "invalid": self.invalid,
            "repeated_ids": len(self.found.repeats),
            "problems": [
                {"where": where, "code": problem.code, "message": problem.message}
                for where, problem in problems
            ],
            "prompt_tokens": lengths.prompt_tokens,
            "most_answer_tokens": lengths.answer_tokens,
            "read_once_tokens": lengths.read_once,
            "saved_tokens": lengths.saved,
            "longest_prompt": {"tokens": lengths.longest, "where": lengths.longest_where},
            "model": self.plan.settings.model,
            "engines": self.engines,
            "slots": self.slots,
            "context": lengths.context,
            "memory": self.memory.to_json(),
            "free_memory": self.free_bytes,
            "most_seconds": None if seconds is None else round(seconds, 1),
            "figures": None if self.figures is None else asdict(self.figures),
        }

    def as_text(self) -> str:
        """For people, a line for each thing."""
        found, lengths, name = self.found, self.lengths, self.plan.source.name
        lines = found.notes(name) + lengths.unfit.lines(name, "that do not fit")
        lines += [
            f"rows:    {found.rows:,}: {found.rows - self.invalid:,} valid, {self.invalid:,} "
            "invalid",
            f"tokens:  {lengths.prompt_tokens:,} of prompts, at most {lengths.answer_tokens:,} of "
            "answers",
        ]
        if lengths.read_once:
            figures, saved = self.figures, lengths.saved
            time = f", {duration(saved / figures.prefill_tps)}" if figures else ""
            lines.append(
                f"once:    the {lengths.read_once:,} tokens that all prompts begin with: saves "
                f"{saved:,} tokens{time}"
            )
        if lengths.rows:
            lines.append(
                f"longest: {lengths.longest:,} tokens of a context of {lengths.context:,} "
                f"({lengths.longest_where})"
            )
        memory = self.memory
        times = f"{self.engines} x " if self.engines > 1 else ""
        lines += [
            f"memory:  {times}{gib(memory.total)} of {gib(self.free_bytes)} free: weights "
            f"{gib(memory.weights)}, KV cache {gib(memory.kv)} ({self.slots} slots x "
            f"{lengths.context:,} tokens), the rest {gib(memory.compute + memory.overhead)}",
            f"time:    {self._time()}",
        ]
        return "".join(line + "\n" for line in lines)

    def _time(self) -> str:
        seconds, figures = self.most_seconds, self.figures
        if figures is None:
            depth, most = self.lengths.depth, max(0, self.lengths.context - TRIAL_TOKENS)
            more = "" if depth is None else f" --depth {min(depth, most)}"
            return (
                f"not known; `ingot plan {self.plan.spec.model} --workload batch{more}` measures"
                " this machine"
            )
        if seconds is None:
            return "none: no row can be asked"
        speeds = f"prefill {rate(figures.prefill_tps)}, decode up to "
        return (
            f"at most {duration(seconds)}, if every answer has its maximum length "
            f"({speeds}{rate(max(figures.decode_tps.values()))} when `ingot plan` measured)"
        )


def dry_run(plan: JobPlan, note: Callable[[str], None]) -> DryRun:
    """Read the input twice: its rows, then their tokens.

    Raises RequestError as the job would, and as ``measure``.
    """
    choice = plan.choice
    found = scan(plan.source, Entries(), strict=plan.spec.rows.strict)
    lengths = measure(plan, note)
    # What a cluster's nodes have is not known here.
    engines = 1 if plan.spec.running.ray is not None else len(placements(plan.engines, choice))
    slots = slots_for(plan, max(1, lengths.rows), engines)
    settings = replace(choice.settings, slots=slots)
    figures = _planned(plan.spec, lengths.depth)
    memory = estimate(choice.file, settings)
    return DryRun(plan, found, lengths, slots, memory, free_memory(), figures, engines)


def _planned(spec: BatchSpec, depth: int | None) -> Figures | None:
    """The figures of the plan for such a job whose depth is nearest; None if `ingot plan` was not
    run."""
    options, settings = spec.options, spec.engine
    files = plan_files(str(spec.model), options, settings.bits)
    for fixed in (overrides(options, settings, spec.slots), Overrides()):
        task = task_for("batch", settings.profile, fixed, depth)
        plan = load_plan(files.models, task, nearest=True)
        if plan is not None:
            return plan.figures
    return None
