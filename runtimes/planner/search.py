"""Trials: every candidate briefly, then the best few longer and in turn."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

from runtimes.errors import ModelError
from runtimes.models.modelfile import ModelFile
from runtimes.planner.candidates import (
    Candidate,
    Task,
    candidates,
    sampling_variants,
    split_by_memory,
    thread_variants,
)
from runtimes.planner.choose import (
    Measured,
    best_of,
    finalists,
    reasons,
    slots_for,
)
from runtimes.planner.plan import Alternative, Plan
from runtimes.planner.race import (
    LEAST_LAPS,
    MOST_LAPS,
    Arm,
    Lap,
    contenders,
    figures_of,
    is_settled,
    without_drift,
)
from runtimes.planner.steps import step_size
from runtimes.planner.trial import Trial, TrialError, trial_context

logger = logging.getLogger(__name__)

PROMPT = 128  # tokens of the timed prefill: enough for every kernel's large tiles

Progress = Callable[[str], None]


def make_plan(models: Iterable[ModelFile], task: Task, progress: Progress = logger.info) -> Plan:
    """Measure and choose. Raises OutOfMemoryError when no file fits, ModelError when none runs."""
    found = candidates(models, task)
    fit, refused = split_by_memory(found, task)
    if not fit:
        _raise_for_memory(found, task)
    search = _Search(task, progress)
    search.failures += [replace(c.describe(), failure=why) for c, why in refused]
    search.first_round(fit)
    search.second_round()
    return search.plan()


class _Search:
    """What has been measured so far."""

    def __init__(self, task: Task, progress: Progress) -> None:
        self._task = task
        self._progress = progress
        self._heats: dict[Candidate, Lap] = {}  # the first round, each candidate by itself
        self._laps: list[Lap] = []
        self._final: list[Candidate] = []
        self.failures: list[Alternative] = []

    def first_round(self, found: list[Candidate]) -> None:
        """One sample of each. Raises ModelError when none can be measured."""
        for candidate in found:
            with self._trial(candidate, self._task.base_rows) as trial:
                heat = Lap()
                if trial and self._sample(trial, candidate, [self._task.base_rows], heat):
                    self._heats[candidate] = heat
        self._require_one()

    def second_round(self) -> None:
        """The best few in turn, with every number of rows; the best also in other ways to run it.

        Raises ModelError when all that could be measured before have died by now.
        """
        task = self._task
        final = [m.candidate for m in finalists(self._measured(self._heats), task)]
        self._final = final + thread_variants(final[0], task) + sampling_variants(final[0], task)
        with contextlib.ExitStack() as stack:
            trials: dict[Candidate, Trial] = {}
            for candidate in self._final:
                slots = max(self._rows(candidate))
                trial = stack.enter_context(self._trial(candidate, slots))
                if trial is not None:
                    trials[candidate] = trial
            self._race(trials)
        self._require_one()

    def _require_one(self) -> None:
        if not self._heats:
            said = "; ".join(f"{a.file}: {a.failure}" for a in self.failures)
            raise ModelError(f"no file runs here ({said})")

    def _race(self, trials: dict[Candidate, Trial]) -> None:
        """Laps over all that may still be the best, until it is clear which is."""
        arms = [(candidate, rows) for candidate in trials for rows in self._rows(candidate)]
        while arms and len(self._laps) < MOST_LAPS:
            arms = self._lap(trials, arms)
            if len(self._laps) < LEAST_LAPS or not arms:
                continue
            arms = contenders(self._laps, arms, self._task)
            steady = without_drift(self._laps)
            if len(arms) == 1 or is_settled(steady, arms, self._task):
                break
            arms.sort(key=lambda arm: (self._final.index(arm[0]), arm[1]))

    def _lap(self, trials: dict[Candidate, Trial], arms: list[Arm]) -> list[Arm]:
        """A sample of every arm, appended to the laps; the arms without those that died."""
        lap = Lap()
        self._laps.append(lap)
        for candidate in dict.fromkeys(candidate for candidate, _ in arms):
            counts = [rows for who, rows in arms if who == candidate]
            if not self._sample(trials[candidate], candidate, counts, lap):
                arms = [arm for arm in arms if arm[0] != candidate]
        return arms

    def _rows(self, candidate: Candidate) -> list[int]:
        """Numbers of rows to measure it with: those that memory allows, and the first round's."""
        task = self._task
        most = candidate.slots_that_fit(task, task.row_counts[-1])
        return sorted({task.base_rows, *(rows for rows in task.row_counts if rows <= most)})

    def plan(self) -> Plan:
        """The choice among what was measured."""
        task = self._task
        measured = self._measured(
            [*self._heats, *(c for c in self._raced() if c not in self._heats)]
        )
        final = [one for one in measured if one.candidate in self._raced()]
        chosen = best_of(final or measured, task)
        slots = slots_for(chosen, task)
        candidate, model = chosen.candidate, chosen.candidate.model
        step = step_size(candidate, task, slots, chosen.figures.prefill_tps, self._progress)
        why = self._reasons(chosen, final, slots)
        others = [replace(m.candidate.describe(), figures=m.figures) for m in measured]
        return Plan(
            workload=task.workload,
            profile=task.profile,
            runtime=model.runtime,
            path=str(model.path),
            threads=candidate.threads,
            slots=slots,
            context=task.context(model),
            batch=step.tokens,
            kv_type=candidate.kv_type,
            unified_kv=candidate.unified_kv,
            gpu_layers=candidate.gpu_layers,
            extra_buffers=True,
            device_sampling=candidate.device_sampling,
            memory=candidate.memory(task, slots, step.tokens).total,
            figures=chosen.figures,
            reasons=(*why, *filter(None, (step.reason(),))),
            alternatives=(*others, *self.failures),
        )

    def _reasons(self, chosen: Measured, final: list[Measured], slots: int) -> tuple[str, ...]:
        """Why, by the last round, or by the first where the chosen one was alone in the last."""
        if len(final) > 1:
            return reasons(chosen, final, self._task, slots)
        heats = [
            Measured(candidate, figures_of(candidate, [heat]), chosen.most_slots)
            for candidate, heat in self._heats.items()
        ]
        own = next((one for one in heats if one.candidate == chosen.candidate), None)
        return reasons(chosen, heats if own else [], self._task, slots, own)

    def _raced(self) -> list[Candidate]:
        """The candidates of the second round that have figures and have not died."""
        there = {candidate for lap in self._laps for candidate in lap.prefill}
        return [candidate for candidate in self._final if candidate in there]

    def _measured(self, found: Iterable[Candidate]) -> list[Measured]:
        raced = self._raced()
        return [
            Measured(
                candidate,
                figures_of(
                    candidate, self._laps if candidate in raced else [self._heats[candidate]]
                ),
                candidate.slots_that_fit(self._task, max(self._task.row_counts)),
            )
            for candidate in found
        ]

    @contextlib.contextmanager
    def _trial(self, candidate: Candidate, slots: int) -> Iterator[Trial | None]:
        """The loaded candidate; None when it does not load, which is noted."""
        about = candidate.describe()
        layout = " unified" if about.unified_kv else ""
        self._progress(f"trying {about.file}{layout} on {about.threads} threads")
        settings = candidate.settings(slots, trial_context(PROMPT), self._task.overrides.batch)
        try:
            trial = Trial(candidate.model.path, settings)
        except TrialError as error:
            self._fail(candidate, error)
            yield None
            return
        with trial:
            yield trial

    def _sample(self, trial: Trial, candidate: Candidate, counts: list[int], lap: Lap) -> bool:
        """A sample with each number of rows; False when the trial has died, which is noted."""
        try:
            for rows in counts:
                # One prompt's prefill does not depend on the rows that decode afterwards.
                sample = trial.sample(PROMPT if rows == counts[0] else 0, rows)
                if sample.prefill_tps is not None:
                    lap.prefill[candidate] = sample.prefill_tps
                lap.decode[candidate, rows] = sample.decode_tps
        except TrialError as error:
            self._fail(candidate, error)
            return False
        return True

    def _fail(self, candidate: Candidate, error: TrialError) -> None:
        """Forget a candidate that died: none of its figures counts."""
        self._heats.pop(candidate, None)
        for lap in self._laps:
            lap.prefill.pop(candidate, None)
            for arm in [arm for arm in lap.decode if arm[0] == candidate]:
                del lap.decode[arm]
        self.failures.append(replace(candidate.describe(), failure=str(error)))


def _raise_for_memory(found: Sequence[Candidate], task: Task) -> NoReturn:
    """Raise OutOfMemoryError for the candidate that needs the least, with what would fit."""
    slots = task.overrides.slots or 1
    smallest = min(found, key=lambda candidate: candidate.memory(task, slots).total)
    smallest.require_fit(task, slots)
    raise AssertionError("a candidate was refused that fits")
