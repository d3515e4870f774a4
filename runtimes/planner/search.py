"""Trials: every candidate briefly, then the best few longer and in turn."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from runtimes.errors import ModelError
from runtimes.models.memory import gib, require_fit
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import (
    Candidate,
    PlanTask,
    candidates,
    sampling_variants,
    split_by_memory,
    thread_variants,
)
from runtimes.planner.choose import Measured, best_of, finalists, reasons, slots_for
from runtimes.planner.plan import Alternative, Plan
from runtimes.planner.race import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    Contender,
    Round,
    figures_of,
    is_settled,
    remaining,
    without_drift,
)
from runtimes.planner.steps import step_size
from runtimes.planner.trial import Trial, TrialError, load_trial

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]


def make_plan(
    models: Iterable[ModelFile], task: PlanTask, progress: Progress = logger.info
) -> Plan:
    """Measure and choose. Raises OutOfMemoryError when no file fits, ModelError when none runs."""
    models = [*models]
    task = task.within(models)
    found = candidates(models, task)
    fit, refused = split_by_memory(found, task)
    if not fit:
        _raise_for_memory(found, task)
    search = _Search(task, progress)
    search.failures += [replace(c.describe(), failure=why) for c, why in refused]
    search.screen(fit)
    search.compare()
    return search.plan()


class _Search:
    """What has been measured so far."""

    def __init__(self, task: PlanTask, progress: Progress) -> None:
        self._task = task
        self._progress = progress
        self._screened: dict[Candidate, Round] = {}  # each candidate by itself
        self._final: list[Candidate] = []
        self._rounds: list[Round] = []  # of the final candidates
        self.failures: list[Alternative] = []

    def screen(self, found: list[Candidate]) -> None:
        """One sample of each. Raises ModelError when none can be measured."""
        rows = self._task.base_rows
        for candidate in found:
            sample = Round()
            try:
                with self._load(candidate, rows) as trial:
                    sample.measure(trial, candidate, [rows])
                self._screened[candidate] = sample
            except TrialError as error:
                self._fail(candidate, error)
        self._require_one()

    def compare(self) -> None:
        """The best few in turn, with every number of rows; the best also in other ways to run it.

        Raises ModelError when all that could be measured before have died by now.
        """
        task = self._task
        final = [m.candidate for m in finalists([*self._screening().values()], task)]
        self._final = final + thread_variants(final[0], task) + sampling_variants(final[0], task)
        with contextlib.ExitStack() as stack:
            trials: dict[Candidate, Trial] = {}
            for candidate in self._final:
                slots = max(self._rows(candidate))
                try:
                    trials[candidate] = stack.enter_context(self._load(candidate, slots))
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
            left = self._round(trials, left)
            if len(self._rounds) < LEAST_ROUNDS or not left:
                continue
            left = remaining(self._rounds, left, self._task)
            if len(left) == 1 or is_settled(without_drift(self._rounds), left, self._task):
                break
            left.sort(key=lambda who: (self._final.index(who[0]), who[1]))

    def _round(self, trials: dict[Candidate, Trial], left: list[Contender]) -> list[Contender]:
        """A sample of each that is ``left``; those of them that have not died."""
        self._rounds.append(Round())
        for candidate in dict.fromkeys(candidate for candidate, _ in left):
            counts = [rows for own, rows in left if own == candidate]
            try:
                self._rounds[-1].measure(trials[candidate], candidate, counts)
            except TrialError as error:
                self._fail(candidate, error)
                left = [who for who in left if who[0] != candidate]
        return left

    def _rows(self, candidate: Candidate) -> list[int]:
        """Numbers of rows to measure it with: those that memory allows, and the screening's."""
        task = self._task
        most = candidate.slots_that_fit(task, task.row_counts[-1])
        return sorted({task.base_rows, *(rows for rows in task.row_counts if rows <= most)})

    def plan(self) -> Plan:
        """The choice among what was measured."""
        task = self._task
        there = {candidate for one in self._rounds for candidate in one.prefill}
        final = {c: self._measured(c, self._rounds) for c in self._final if c in there}
        measured = {**self._screening(), **final}.values()
        chosen = best_of([*(final.values() or measured)], task)
        slots = slots_for(chosen, task)
        candidate, model = chosen.candidate, chosen.candidate.model
        step = step_size(candidate, task, slots, chosen.figures.prefill_tps, self._progress)
        if len(final) > 1:
            why = reasons(chosen, [*final.values()], task, slots)
        else:  # alone in the rounds: by the screening
            screened = self._screening()
            beside = screened.get(candidate)
            others = [*screened.values()] if beside else []
            why = reasons(chosen, others, task, slots, beside)
        looked_at = [replace(m.candidate.describe(), figures=m.figures) for m in measured]
        return Plan(
            workload=task.workload,
            profile=task.profile,
            runtime=model.runtime,
            path=str(model.path),
            settings=replace(candidate.sized(task, slots, step.tokens), kv_tokens=None),
            memory=candidate.memory(task, slots, step.tokens),
            figures=chosen.figures,
            reasons=(*why, *filter(None, (step.reason(),))),
            alternatives=(*looked_at, *self.failures),
            depth=task.depth,
        )

    def _screening(self) -> dict[Candidate, Measured]:
        return {own: self._measured(own, [sample]) for own, sample in self._screened.items()}

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
            one.prefill.pop(candidate, None)
            for who in [who for who in one.decode if who[0] == candidate]:
                del one.decode[who]
        self.failures.append(replace(candidate.describe(), failure=str(error)))


def _raise_for_memory(found: Sequence[Candidate], task: PlanTask) -> NoReturn:
    """Raise OutOfMemoryError for the candidate that needs the least, with what would fit."""
    slots = task.overrides.slots or 1
    smallest = min(found, key=lambda candidate: candidate.memory(task, slots))
    said = f"may be used: three quarters of the {gib(task.free)} that are free"
    require_fit(smallest.model, smallest.sized(task, slots), task.usable, said=said)
    raise AssertionError("a candidate was refused that fits")
