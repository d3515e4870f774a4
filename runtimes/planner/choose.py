"""The choice among measured candidates: pure functions of figures and sizes."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runtimes.models.registry import backend_of
from runtimes.planner.candidates import Candidate, PlanTask
from runtimes.planner.plan import OUTPUT_TOKENS, PROMPT_TOKENS, Figures

_GAIN = 1.02  # what twice the slots must bring to be worth their memory
_CLOSE = 1.4  # how far behind one short sample may be and still be looked at again
_FINALISTS = 3
_HALF_SPEED = 0.5  # how slow the smallest may be under the profile `memory`
BUSY = 0.2  # samples that scatter more than this say that something else was running


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate, and what was measured of it."""

    candidate: Candidate
    figures: Figures
    most_slots: int  # that memory allows


def score(figures: Figures, task: PlanTask, rows: Iterable[int] | None = None) -> float:
    """Higher is better: turns a second of one row, or the job's tokens a second at the best of
    ``rows`` (None: of all that were measured)."""
    if task.workload == "chat" or task.profile == "latency":
        return 1 / figures.turn_s(task.workload)
    return max(figures.job_tps(n) for n in rows or figures.decode_tps)


def speeds(measured: Sequence[Measured], task: PlanTask) -> list[float]:
    """Each one's score, at numbers of rows that all of them were measured with."""
    common = frozenset.intersection(*(frozenset(m.figures.decode_tps) for m in measured))
    return [score(m.figures, task, common) for m in measured]


def _ranked(measured: Sequence[Measured], task: PlanTask) -> list[tuple[float, Measured]]:
    """Each one with its speed, the fastest first."""
    pairs = zip(speeds(measured, task), measured, strict=True)
    return sorted(pairs, key=lambda pair: -pair[0])


def best_of(measured: Sequence[Measured], task: PlanTask) -> Measured:
    """The one that the profile asks for. ``measured`` must not be empty."""
    ranked = _ranked(measured, task)
    if task.profile != "memory":
        return ranked[0][1]
    enough = _HALF_SPEED * ranked[0][0]
    good = [one for speed, one in ranked if speed >= enough]
    return min(good, key=lambda one: one.candidate.memory(task, slots_for(one, task)))


def slots_for(one: Measured, task: PlanTask) -> int:
    """How many slots the chosen candidate gets, never more than memory allows."""
    if len(task.row_counts) == 1:
        return min(*task.row_counts, one.most_slots)
    rows = [n for n in one.figures.decode_tps if n <= one.most_slots]
    if not rows:
        return one.most_slots
    if task.profile == "throughput":
        return max(rows, key=one.figures.job_tps)
    chosen = rows[0]
    for more in rows[1:]:
        if one.figures.job_tps(more) >= _GAIN * one.figures.job_tps(chosen):
            chosen = more
    return chosen


def finalists(measured: Sequence[Measured], task: PlanTask) -> list[Measured]:
    """List the candidates worth a longer look: the best, and what one short sample may have
    wronged."""
    if task.profile == "memory":
        return [best_of(measured, task)]
    ranked = _ranked(measured, task)
    return [one for speed, one in ranked[:_FINALISTS] if speed >= ranked[0][0] / _CLOSE]


def reasons(
    chosen: Measured,
    others: Sequence[Measured],
    task: PlanTask,
    slots: int,
    beside: Measured | None = None,
) -> Iterator[str]:
    """Why, in sentences with figures.

    ``beside`` is the chosen one as it was measured in the same round as ``others``, where that was
    not the round of its own figures: figures of two rounds are not to be compared.
    """
    yield _speed_line(chosen, beside or chosen, others, task)
    if task.workload == "batch" and not task.overrides.slots:
        yield _slots_line(chosen, task, slots)
    if task.profile == "memory":
        yield "the smallest of those with at least half of the best speed"
    settings, cores = chosen.candidate.settings, task.cores
    threads = settings.threads or cores
    if task.overrides.threads:
        pass  # as was asked
    elif threads == cores:
        yield f"{threads} thread{'s' if threads > 1 else ''}: one a core that may be used"
    else:
        yield f"{threads} threads were faster than one on each of {cores} cores"
    if "kv_type" in backend_of(chosen.candidate.model).knows and not task.overrides.kv_type:
        if settings.kv_type == "f16":
            yield (
                "keys and values f16: smaller types change answers and are used only with --kv-type"
            )
        else:
            yield f"keys and values {settings.kv_type}, about half of what f16 takes"
    if chosen.figures.scatter > BUSY:
        yield (
            f"samples scattered by {chosen.figures.scatter:.0%}: the machine was busy; "
            "`--again` on a quiet one is surer"
        )


def _speed_line(
    chosen: Measured, beside: Measured, others: Sequence[Measured], task: PlanTask
) -> str:
    speed = _speed(score(chosen.figures, task), task)
    rest = [m for m in others if m.candidate != chosen.candidate]
    if not rest:
        return f"{speed}; nothing else could be compared"
    pairs = [(speeds([beside, other], task), other) for other in rest]
    (own, its), second = min(pairs, key=lambda pair: pair[0][0] / pair[0][1])
    other = second.candidate.describe()
    threads = other.settings.threads or 0
    layout = " with one shared cache" if other.settings.unified_kv else ""
    return (
        f"{speed}; {own / its:.2f} times as fast as {other.file}{layout} on {threads} "
        f"thread{'s' if threads > 1 else ''}, the {'next' if own >= its else 'very'} best"
    )


def _speed(value: float, task: PlanTask) -> str:
    prompt = PROMPT_TOKENS[task.workload]
    behind = f" behind {task.depth:,}" if task.depth else ""
    if task.workload == "chat" or task.profile == "latency":
        return f"{1 / value:.2f} s for {prompt} prompt tokens and {OUTPUT_TOKENS} of answer{behind}"
    return f"{value:,.0f} tok/s, {prompt} prompt tokens and {OUTPUT_TOKENS} of answer a row{behind}"


def _slots_line(chosen: Measured, task: PlanTask, slots: int) -> str:
    tried = ", ".join(
        f"{chosen.figures.job_tps(rows):,.0f} tok/s with {rows}"
        for rows in chosen.figures.decode_tps
    )
    limit = (
        f"; memory allows {chosen.most_slots}" if chosen.most_slots < max(task.row_counts) else ""
    )
    return f"{slots} slots: rows that run together do {tried}{limit}"


def spread(values: Sequence[float]) -> float:
    """Return the spread of samples, as a part of their median."""
    return (max(values) - min(values)) / statistics.median(values)
