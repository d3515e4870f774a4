"""Trials, each in a process of its own, so that a native crash ends the trial and nothing else:
every candidate briefly, then the best few longer and in turn."""

import contextlib
import itertools
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runtimes.errors import ModelError, RuntimeMissingError
from runtimes.machine.linechild import LineChild, LineChildError
from runtimes.models.memory import estimate, gib, largest_context, require_fit
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import (
    Candidate,
    Measured,
    PlanTask,
    best_of,
    candidates,
    finalists,
    reasons,
    score,
    slots_for,
    split_by_memory,
    spread,
    variants,
)
from runtimes.planner.plan import TRIAL_PROMPT, TRIAL_TOKENS, Alternative, Figures, Plan
from runtimes.planner.trial_child import LEAST_DEPTH
from runtimes.settings import RunnerSettings

# Longer than any trial takes whose candidate one would want to choose. A sample at a depth fills
# it first, and where it cannot it is also taken at the start.
_LOAD_S, _SAMPLE_S = 120.0, 180.0
_AT_ONCE = 6  # trials that may be loaded at the same time, each with a cache of its own


class TrialError(Exception):
    """The candidate cannot be measured; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens a second at the trial's depth, extrapolated to it where it could not be filled."""

    prefill_tps: float  # of one prompt; 0 where it was not timed
    decode_tps: float  # of all rows that decoded together
    depth: int  # tokens behind which the sample was taken


class Trial(LineChild):
    """A loaded candidate."""

    def __init__(self, path: Path, settings: RunnerSettings, depth: int = 0) -> None:
        """Load the file. A context with less room than TRIAL_TOKENS behind ``depth`` is filled as
        far as it has. Raises TrialError when the candidate does not load.
        """
        self._depth = depth
        asked = json.dumps(asdict(settings))
        super().__init__("runtimes.planner.trial_child", path, asked, name="its process")
        try:
            self.answer(_LOAD_S)
        except BaseException:
            self.close()
            raise

    def answer(self, limit_s: float | None = None) -> Any:
        """Raises TrialError for the candidate's own failure; what Python cannot import is not."""
        try:
            found = super().answer(limit_s)
        except LineChildError as error:
            kind = RuntimeMissingError if error.why == "import" else TrialError
            raise kind(str(error)) from error
        if "error" in found:
            raise TrialError(found["error"])
        return found

    def sample(self, prompt: int, rows: int) -> Sample:
        """Measure once; a ``prompt`` of 0 tokens is not timed. Raises TrialError."""
        asked = {"prompt": prompt, "rows": rows, "depth": self._depth}
        return Sample(**self.ask(asked, _SAMPLE_S))

    def prefill(self, prompt: int, piece: int) -> float:
        """Tokens a second of one prompt that goes in by steps of ``piece`` tokens.

        Raises TrialError.
        """
        return float(self.ask({"prompt": prompt, "piece": piece}, _SAMPLE_S)["prefill_tps"])


def load_trial(candidate: Candidate, task: PlanTask, slots: int) -> Trial:
    """A trial of ``slots`` rows at the task's depth, or with as much room as memory has for trials
    beside each other. Raises TrialError when the candidate does not load."""
    model = candidate.model
    # A budget of --kv-tokens is for rows of a whole context.
    sized = replace(candidate.sized(task, slots), kv_tokens=None)
    context = TRIAL_TOKENS + task.depth
    if task.depth > LEAST_DEPTH and not candidate.on_gpu(task):
        least = TRIAL_TOKENS + LEAST_DEPTH
        need = estimate(model, replace(sized, context=least)).total
        room = need + max(0, task.usable - need) // _AT_ONCE
        context = min(context, max(least, largest_context(model, sized, room)))
    return Trial(model.path, replace(sized, context=context), task.depth)


logger = logging.getLogger(__name__)

# The best few in turn, round by round, until it is clear which is the fastest.
#
# The samples of a round follow each other, so that what else the machine does falls on all of
# them alike: settings are compared within a round, whose common drift is divided out of its
# figures.
LEAST_ROUNDS, MOST_ROUNDS = 4, 20
_BEHIND = 0.85  # of the leader's score: what is slower than this is not measured again
_SURE, _FINE = 2.0, 0.01  # standard errors that part two settings; an error that is small enough

Progress = Callable[[str], None]
# A candidate with a number of rows together.
Contender = tuple[Candidate, int]


# One sample of each in turn.
Round = dict[Contender, Sample]


def measure(trial: Trial, candidate: Candidate, counts: Iterable[int]) -> Round:
    """A sample with each number of rows. Raises TrialError."""
    found: Round = {}
    prefill_tps = None
    for rows in counts:
        # One prompt's prefill does not depend on the rows that decode afterwards.
        sample = trial.sample(0 if prefill_tps else TRIAL_PROMPT, rows)
        prefill_tps = prefill_tps or sample.prefill_tps
        found[candidate, rows] = replace(sample, prefill_tps=prefill_tps)
    return found


def without_drift(rounds: Sequence[Round]) -> list[Round]:
    """The rounds as if the machine had been equally fast in all of them."""
    whole = set(rounds[0]).intersection(*rounds)
    usual = {who: statistics.median(one[who].decode_tps for one in rounds) for who in whole}
    steady = []
    for one in rounds:
        speeds = [one[who].decode_tps / usual[who] for who in whole]
        drift = statistics.median(speeds or [1.0])
        steady.append(
            {
                who: replace(s, prefill_tps=s.prefill_tps / drift, decode_tps=s.decode_tps / drift)
                for who, s in one.items()
            }
        )
    return steady


def figures_of(candidate: Candidate, rounds: Sequence[Round]) -> Figures:
    """The candidate's median round, drift divided out; the scatter is that of the raw samples."""
    raw, steady = (_by_rows(candidate, some) for some in (rounds, without_drift(rounds)))
    whole = max(raw, key=lambda rows: len(raw[rows]))  # in as many rounds as the candidate was
    prefill = [sample.prefill_tps for sample in raw[whole]]
    decode = [[sample.decode_tps for sample in samples] for samples in raw.values()]
    return Figures(
        statistics.median(sample.prefill_tps for sample in steady[whole]),
        {rows: statistics.median(one.decode_tps for one in steady[rows]) for rows in sorted(raw)},
        max(map(spread, [prefill, *decode])),
        min(sample.depth for samples in raw.values() for sample in samples),
    )


def _by_rows(candidate: Candidate, rounds: Sequence[Round]) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = {}
    for (own, rows), sample in itertools.chain.from_iterable(one.items() for one in rounds):
        if own == candidate:
            found.setdefault(rows, []).append(sample)
    return found


def remaining(
    rounds: Sequence[Round], among: Iterable[Contender], task: PlanTask
) -> list[Contender]:
    """List the candidates of ``among`` that may still be the best, the best so far first."""
    steady = without_drift(rounds)
    found = {who: statistics.median(scores(who, steady, task)) for who in among}
    ranked = sorted(found, key=lambda who: -found[who])
    return [who for who in ranked if found[who] >= _BEHIND * found[ranked[0]]]


def is_settled(rounds: Sequence[Round], ranked: Sequence[Contender], task: PlanTask) -> bool:
    """Whether more rounds would hardly change which of ``ranked`` is the best, or by how much."""
    leader = scores(ranked[0], rounds, task)
    for contender in ranked[1:]:
        pairs = zip(leader, scores(contender, rounds, task), strict=True)
        ahead = [math.log(first / other) for first, other in pairs]
        error = statistics.stdev(ahead) / math.sqrt(len(ahead))
        if error > _FINE and statistics.mean(ahead) < _SURE * error:
            return False
    return True


def scores(contender: Contender, rounds: Sequence[Round], task: PlanTask) -> list[float]:
    """The score in each round; see ``candidates.score``."""
    samples = [one[contender] for one in rounds if contender in one]
    rows = contender[1]
    return [score(Figures(one.prefill_tps, {rows: one.decode_tps}), task) for one in samples]


# How many tokens a step may have: measured on the chosen file alone.
#
# It decides how a long prompt is cut. Smaller steps need less memory and keep other rows waiting
# less, larger ones feed wide hardware better; on one file's own kernels that is quickly seen.
_SIZES = (128, 256, 512)
_GPU_SIZES = (*_SIZES, 1024, 2048)
_ROUNDS = 3
_SAMPLE_S = 2.5  # a prompt that takes longer is too long to be tried three times
_ENOUGH = 0.98  # of the best speed


def step_size(
    candidate: Candidate,
    task: PlanTask,
    slots: int,
    prefill_tps: float,
    progress: Progress = logger.info,
) -> tuple[int, list[str]]:
    """Measure, choose, and say why: what was fixed, or the default where nothing can be told, has
    no reason."""
    usual = RunnerSettings().batch
    sizes = sizes_to_try(candidate, task, slots, prefill_tps)
    if task.overrides.batch or len(sizes) < 2:
        return task.overrides.batch or usual, []
    progress(f"trying steps of {', '.join(map(str, sizes))} tokens")
    prompt = sizes[-1]
    asked = replace(candidate.settings, slots=1, context=prompt + 8, batch=prompt)
    try:
        with Trial(candidate.model.path, asked) as trial:
            rounds = [[trial.prefill(prompt, size) for size in sizes] for _ in range(_ROUNDS)]
    except TrialError:
        return usual, []
    found = dict(zip(sizes, map(statistics.median, zip(*rounds, strict=True)), strict=True))
    tokens = choose_size(found, usual)
    tried = ", ".join(f"{tps:,.0f} tok/s by {n}" for n, tps in found.items())
    return tokens, [f"steps of up to {tokens} tokens: a prompt of {sizes[-1]} goes in at {tried}"]


def sizes_to_try(
    candidate: Candidate, task: PlanTask, slots: int, prefill_tps: float
) -> tuple[int, ...]:
    """List the sizes that have room for a token of every row, fit a slot, and take no more than
    seconds."""
    sizes = _GPU_SIZES if candidate.on_gpu(task) else _SIZES
    most = min(task.context(candidate.model), int(_SAMPLE_S * prefill_tps))
    return tuple(size for size in sizes if slots <= size <= most)


def choose_size(prefill_tps: dict[int, float], usual: int) -> int:
    """The smallest that is about as fast as the best. ``usual`` where the largest that was tried is
    the only fast one and smaller than that: a larger one might be faster still."""
    best = max(prefill_tps.values())
    chosen = min(size for size, tps in prefill_tps.items() if tps >= _ENOUGH * best)
    return max(chosen, usual) if chosen == max(prefill_tps) else chosen


def make_plan(
    models: Iterable[ModelFile], task: PlanTask, progress: Progress = logger.info
) -> Plan:
    """Measure and choose. Raises OutOfMemoryError when no file fits, ModelError when none runs."""
    models = [*models]
    task = task.within(models)
    found = candidates(models, task)
    fit, refused = split_by_memory(found, task)
    if not fit:  # an error for the candidate that needs the least, with what would fit
        slots = task.overrides.slots or 1
        least = min(found, key=lambda candidate: candidate.memory(task, slots))
        said = f"may be used: three quarters of the {gib(task.free)} that are free"
        require_fit(least.model, least.sized(task, slots), task.usable, said=said)
    search = _Search(task, progress)
    search.failures += [c.describe(failure=why) for c, why in refused]
    search.screen(fit)
    search.compare()
    return search.plan()


class _Search:
    """Measurements so far."""

    def __init__(self, task: PlanTask, progress: Progress) -> None:
        self._task = task
        self._progress = progress
        self._screened: dict[Candidate, Measured] = {}  # each candidate by itself
        self._final: list[Candidate] = []
        self._rounds: list[Round] = []  # of the final candidates
        self.failures: list[Alternative] = []

    def screen(self, found: list[Candidate]) -> None:
        """One sample of each. Raises ModelError when none can be measured."""
        rows = self._task.base_rows
        for candidate in found:
            try:
                with self._load(candidate, rows) as trial:
                    sample = measure(trial, candidate, [rows])
                self._screened[candidate] = self._measured(candidate, [sample])
            except TrialError as error:
                self._fail(candidate, error)
        self._require_one()

    def compare(self) -> None:
        """The best few in turn, with every number of rows; the best also in other ways to run it.

        Raises ModelError when all that could be measured before have died by now.
        """
        task = self._task
        final = [m.candidate for m in finalists([*self._screened.values()], task)]
        self._final = final + variants(final[0], task)
        with contextlib.ExitStack() as stack:
            trials: dict[Candidate, Trial] = {}
            for candidate in self._final:
                try:
                    trial = self._load(candidate, self._rows(candidate)[-1])
                    trials[candidate] = stack.enter_context(trial)
                except TrialError as error:
                    self._fail(candidate, error)
            self._race(trials)
        self._require_one()

    def _require_one(self) -> None:
        if not self._screened:
            said = "; ".join(f"{a.file}: {a.failure}" for a in self.failures)
            raise ModelError(f"no file runs here ({said})")

    def _race(self, trials: dict[Candidate, Trial]) -> None:
        """Rounds over all that may still be the best, until it is clear which is."""
        left = [(candidate, rows) for candidate in trials for rows in self._rows(candidate)]
        while left and len(self._rounds) < MOST_ROUNDS:
            self._rounds.append({})
            for candidate in self._final:
                counts = sorted(rows for own, rows in left if own == candidate)
                try:
                    if counts:
                        self._rounds[-1] |= measure(trials[candidate], candidate, counts)
                except TrialError as error:
                    self._fail(candidate, error)
                    left = [who for who in left if who[0] != candidate]
            if left and len(self._rounds) >= LEAST_ROUNDS:
                left = remaining(self._rounds, left, self._task)
                if len(left) == 1 or is_settled(without_drift(self._rounds), left, self._task):
                    break

    def _rows(self, candidate: Candidate) -> list[int]:
        """Numbers of rows to measure it with: those that memory allows, and the screening's."""
        task = self._task
        most = candidate.slots_that_fit(task, task.row_counts[-1])
        return sorted({task.base_rows, *(rows for rows in task.row_counts if rows <= most)})

    def plan(self) -> Plan:
        """The choice among what was measured."""
        task = self._task
        there = {candidate for one in self._rounds for candidate, _ in one}
        final = {c: self._measured(c, self._rounds) for c in self._final if c in there}
        measured = {**self._screened, **final}.values()
        chosen = best_of([*(final.values() or measured)], task)
        slots = slots_for(chosen, task)
        candidate, model = chosen.candidate, chosen.candidate.model
        prefill_tps = chosen.figures.prefill_tps
        step, step_why = step_size(candidate, task, slots, prefill_tps, self._progress)
        alone = len(final) < 2 and candidate in self._screened  # in the rounds
        others = self._screened if alone else final
        why = reasons(chosen, [*others.values()], task, slots, others[candidate])
        looked_at = [m.candidate.describe(m.figures) for m in measured]
        return Plan(
            workload=task.workload,
            profile=task.profile,
            runtime=model.runtime,
            path=str(model.path),
            settings=replace(candidate.sized(task, slots, step), kv_tokens=None),
            memory=candidate.memory(task, slots, step),
            figures=chosen.figures,
            reasons=(*why, *step_why),
            alternatives=(*looked_at, *self.failures),
            depth=task.depth,
        )

    def _measured(self, candidate: Candidate, rounds: Sequence[Round]) -> Measured:
        fit = candidate.slots_that_fit(self._task, max(self._task.row_counts))
        return Measured(candidate, figures_of(candidate, rounds), fit)

    def _load(self, candidate: Candidate, slots: int) -> Trial:
        """Raises TrialError when it does not load."""
        asked = candidate.settings
        how = " unified" if asked.unified_kv else ""
        how += " with the GPU" if candidate.on_gpu(self._task) else ""
        self._progress(f"trying {candidate.model.path.name}{how} on {asked.threads} threads")
        return load_trial(candidate, self._task, slots)

    def _fail(self, candidate: Candidate, error: TrialError) -> None:
        """Forget a candidate that died: none of its figures counts."""
        self._screened.pop(candidate, None)
        for one in self._rounds:
            for who in [who for who in one if who[0] == candidate]:
                del one[who]
        self.failures.append(candidate.describe(failure=str(error)))
