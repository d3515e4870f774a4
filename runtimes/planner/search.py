"""Trials: every candidate briefly, then the best few longer and in turn."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from runtimes.errors import ModelError, OutOfMemoryError
from runtimes.memory import require_fit
from runtimes.modelfile import ModelFile
from runtimes.plan import Alternative, Plan
from runtimes.planner.candidates import (
    Candidate,
    Task,
    candidates,
    split_by_memory,
    thread_variants,
)
from runtimes.planner.choose import (
    BUSY,
    Measured,
    best_of,
    figures_of,
    finalists,
    reasons,
    slots_for,
)
from runtimes.planner.trial import Sample, Trial, TrialError, trial_context
from runtimes.settings import RunnerSettings

logger = logging.getLogger(__name__)

PROMPT = 128  # tokens of the timed prefill: enough for every kernel's large tiles
_ROUNDS, _MOST_ROUNDS = 2, 5  # in turn; more where samples scatter

Progress = Callable[[str], None]
_Taken = dict[int, list[Sample]]  # rows -> samples


def make_plan(models: Iterable[ModelFile], task: Task, progress: Progress = logger.info) -> Plan:
    """Measure and choose. Raises OutOfMemoryError when no file fits, ModelError when none runs."""
    models = list(models)
    fit, refused = split_by_memory(candidates(models, task), task)
    if not fit:
        _raise_for_memory(models, task)
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
        self._taken: dict[Candidate, _Taken] = {}
        self._final: list[Candidate] = []
        self.failures: list[Alternative] = []

    def first_round(self, found: list[Candidate]) -> None:
        """One sample of each. Raises ModelError when none can be measured."""
        for candidate in found:
            with self._trial(candidate, self._task.base_rows) as trial:
                if trial is not None:
                    self._sample(candidate, trial, [self._task.base_rows])
        if not self._taken:
            said = "; ".join(f"{a.file}: {a.failure}" for a in self.failures)
            raise ModelError(f"no file runs here ({said})")

    def second_round(self) -> None:
        """The best few in turn, with fewer threads and with every number of rows."""
        task = self._task
        final = [m.candidate for m in finalists(self._measured(self._taken), task)]
        final += thread_variants(final[0], task)
        self._final = final
        with contextlib.ExitStack() as stack:
            trials: dict[Candidate, Trial] = {}
            for candidate in final:
                slots = max(self._rows(candidate))
                trial = stack.enter_context(self._trial(candidate, slots))
                if trial is not None:
                    trials[candidate] = trial
            for done in range(_MOST_ROUNDS):
                if done >= _ROUNDS and not self._scattered(trials):
                    break
                for candidate, trial in list(trials.items()):
                    if not self._sample(candidate, trial, self._rows(candidate)):
                        del trials[candidate]

    def _scattered(self, found: Iterable[Candidate]) -> bool:
        return any(m.figures.scatter > BUSY for m in self._measured(found))

    def _rows(self, candidate: Candidate) -> list[int]:
        """Numbers of rows to measure it with: those that memory allows, and the first round's."""
        task = self._task
        most = candidate.slots_that_fit(task, task.row_counts[-1])
        return sorted({task.base_rows, *(rows for rows in task.row_counts if rows <= most)})

    def plan(self) -> Plan:
        """The choice among what was measured."""
        task = self._task
        measured = self._measured(self._taken)
        final = [one for one in measured if one.candidate in self._final]
        chosen = best_of(final or measured, task)
        slots = slots_for(chosen, task)
        candidate, model = chosen.candidate, chosen.candidate.model
        others = [replace(m.candidate.describe(), figures=m.figures) for m in measured]
        return Plan(
            workload=task.workload,
            profile=task.profile,
            runtime=model.runtime,
            path=str(model.path),
            threads=candidate.threads,
            slots=slots,
            context=task.context(model),
            batch=task.overrides.batch or RunnerSettings().batch,
            kv_type=candidate.kv_type,
            unified_kv=candidate.unified_kv,
            gpu_layers=candidate.gpu_layers,
            extra_buffers=True,
            memory=candidate.memory(task, slots).total,
            figures=chosen.figures,
            reasons=reasons(chosen, measured, task, slots),
            alternatives=(*others, *self.failures),
        )

    def _measured(self, found: Iterable[Candidate]) -> list[Measured]:
        return [
            Measured(
                candidate,
                figures_of(self._taken[candidate]),
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

    def _sample(self, candidate: Candidate, trial: Trial, counts: list[int]) -> bool:
        """A sample with each number of rows; False when the trial has died, which is noted."""
        try:
            for rows in counts:
                # One prompt's prefill does not depend on the rows that decode afterwards.
                prompt = PROMPT if rows == counts[0] else 0
                sample = trial.sample(prompt, rows)
                self._taken.setdefault(candidate, {}).setdefault(rows, []).append(sample)
        except TrialError as error:
            self._fail(candidate, error)
            return False
        return True

    def _fail(self, candidate: Candidate, error: TrialError) -> None:
        self._taken.pop(candidate, None)
        self.failures.append(replace(candidate.describe(), failure=str(error)))


def _raise_for_memory(models: list[ModelFile], task: Task) -> None:
    smallest = min(models, key=lambda model: model.nbytes)
    available = int(task.free)
    require_fit(
        smallest,
        task.overrides.slots or 1,
        task.context(smallest),
        available,
        kv_type=task.overrides.kv_type or "f16",
    )
    raise OutOfMemoryError(
        f"{smallest.path} would take more than three quarters of the free memory; "
        "ask for fewer --slots or a smaller --context"
    )
