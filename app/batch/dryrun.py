"""What a job would be: its rows, tokens, memory and time, without loading weights."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.batch.input.lengths import FileEncoder, Lengths, measure
from app.batch.input.scan import InputScan, scan
from app.batch.journal.journal import Entries
from app.batch.plan import JobPlan
from app.batch.schedule.engines import free_memory, placements, slots_for
from app.figures import duration, rate
from app.models.planning import overrides, plan_files, task_for
from app.options import ModelOptions, PlanOptions
from app.prompts import PromptStyle
from runtimes.backend import MemoryEstimate
from runtimes.errors import RequestError
from runtimes.models.memory import estimate, gib
from runtimes.planner.candidates import Overrides
from runtimes.planner.known import load_plan
from runtimes.planner.plan import TRIAL_TOKENS, Figures


@dataclass(frozen=True, slots=True)
class DryRun:
    """``figures`` are those that the plan was chosen by, None without a plan; ``free_bytes`` what
    memory has now. ``name`` and ``asked_model`` are the user's words for input and model;
    ``slots`` and ``memory`` are those of each of ``engines``."""

    model: str
    found: InputScan
    lengths: Lengths
    slots: int
    context: int
    memory: MemoryEstimate
    free_bytes: int
    name: str
    asked_model: str
    figures: Figures | None = None
    engines: int = 1

    @property
    def invalid(self) -> int:
        """Rows that would become errors."""
        return self.found.invalid + self.lengths.unfit

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

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        lengths, seconds = self.lengths, self.most_seconds
        problems = [*self.found.problems, *lengths.problems]
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
            "longest_prompt": {"tokens": lengths.longest, "where": lengths.longest_where},
            "model": self.model,
            "engines": self.engines,
            "slots": self.slots,
            "context": self.context,
            "memory": self.memory.to_json(),
            "free_memory": self.free_bytes,
            "most_seconds": None if seconds is None else round(seconds, 1),
            "figures": None if self.figures is None else asdict(self.figures),
        }

    def as_text(self) -> str:
        """For people, a line for each thing."""
        found, lengths = self.found, self.lengths
        lines = found.notes(self.name)
        lines += [f"{self.name}, {where}: {p.message}" for where, p in lengths.problems]
        if lengths.unfit > len(lengths.problems):
            lines.append(f"and {lengths.unfit - len(lengths.problems):,} more that do not fit")
        valid = found.rows - self.invalid
        lines.append(f"rows:    {found.rows:,}: {valid:,} valid, {self.invalid:,} invalid")
        lines.append(
            f"tokens:  {lengths.prompt_tokens:,} of prompts, at most {lengths.answer_tokens:,} of "
            "answers"
        )
        if lengths.rows:
            lines.append(
                f"longest: {lengths.longest:,} tokens of a context of {self.context:,} "
                f"({lengths.longest_where})"
            )
        memory = self.memory
        times = f"{self.engines} x " if self.engines > 1 else ""
        lines.append(
            f"memory:  {times}{gib(memory.total)} of {gib(self.free_bytes)} free: weights "
            f"{gib(memory.weights)}, KV cache {gib(memory.kv)} ({self.slots} slots x "
            f"{self.context:,} tokens), the rest {gib(memory.compute + memory.overhead)}"
        )
        lines.append(f"time:    {self._time()}")
        return "".join(line + "\n" for line in lines)

    def _time(self) -> str:
        seconds, figures = self.most_seconds, self.figures
        if figures is None:
            depth, most = self.lengths.depth, max(0, self.context - TRIAL_TOKENS)
            more = "" if depth is None else f" --depth {min(depth, most)}"
            return (
                f"not known; `ingot plan {self.asked_model} --workload batch{more}` measures this"
                " machine"
            )
        if seconds is None:
            return "none: no row can be asked"
        speeds = f"prefill {rate(figures.prefill_tps)}, decode up to "
        return (
            f"at most {duration(seconds)}, if every answer has its maximum length "
            f"({speeds}{rate(max(figures.decode_tps.values()))} when `ingot plan` measured)"
        )


def dry_run(
    plan: JobPlan,
    model: str,
    planned: Callable[[int | None], Figures | None],
    note: Callable[[str], None],
) -> DryRun:
    """Read the input twice: its rows, then their tokens. ``model`` is what the user calls it,
    ``planned`` gives the figures of the plan nearest to a depth.

    Raises RequestError as the job would, with ``plan.strict`` also for rows that do not fit;
    ModelError for a model whose tokenizer cannot be read.
    """
    choice = plan.choice
    found = scan(plan.source, Entries(), strict=plan.spec.rows.strict)
    encoder = FileEncoder(choice.file, choice.settings)
    lengths = _measure(plan, encoder, note)
    # What a cluster's nodes have is not known here.
    engines = 1 if plan.spec.running.ray is not None else len(placements(plan.engines, choice))
    slots = slots_for(
        choice, max(1, lengths.rows), fixed=plan.spec.slots is not None, engines=engines
    )
    settings = replace(choice.settings, slots=slots)
    return DryRun(
        model=plan.settings.model,
        found=found,
        lengths=lengths,
        slots=slots,
        context=encoder.context,
        memory=estimate(choice.file, settings),
        free_bytes=free_memory(),
        name=plan.source.name,
        asked_model=model,
        figures=planned(lengths.depth),
        engines=engines,
    )


def require_fit(plan: JobPlan, note: Callable[[str], None]) -> None:
    """Raises RequestError, naming the first ones, if valid rows do not fit model and context."""
    _measure(plan, FileEncoder(plan.choice.file, plan.choice.settings), note)


def planned_figures(
    model: str,
    options: ModelOptions,
    settings: PlanOptions,
    slots: int | None,
    depth: int | None = None,
) -> Figures | None:
    """The figures of the plan for such a job whose depth is nearest; None if `ingot plan` was not
    run."""
    files = plan_files(model, options, settings.bits)
    for fixed in (overrides(options, settings, slots), Overrides()):
        task = task_for("batch", settings.profile, fixed, depth)
        plan = load_plan(files.models, task, nearest=True)
        if plan is not None:
            return plan.figures
    return None


def _measure(plan: JobPlan, encoder: FileEncoder, note: Callable[[str], None]) -> Lengths:
    style = PromptStyle(plan.settings.system, plan.settings.raw)
    lengths = measure(plan.source, encoder, style, plan.settings.sampling, note)
    if plan.spec.rows.strict and lengths.unfit:
        named = [f"{plan.source.name}, {where}: {p.message}" for where, p in lengths.problems]
        raise RequestError(
            "\n".join([*named, f"--strict: {lengths.unfit:,} rows do not fit; nothing was done"])
        )
    return lengths
