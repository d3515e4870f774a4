"""A comparison under way, for callers that look at it now and then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from app.compare.agreement import agreement
from app.compare.asking import AskedFile
from app.compare.records import Agreement, Contender, Question, Report, Side
from app.models.planning import Choice, choose
from app.options import PlanOptions
from quantize.hub.store import human
from runtimes.errors import IngotError, RequestError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import estimate_settings

logger = logging.getLogger(__name__)


class Comparison:
    """Asks each file in a process of its own: one after another, so that none takes processor time
    from the one that is measured, or all ``together`` where there is room for that.

    Every method may be called from any thread and returns soon.
    """

    def __init__(
        self, contenders: Sequence[Contender], question: Question, *, together: bool = False
    ) -> None:
        """Raises RequestError for fewer than two files."""
        if len(contenders) < 2:
            raise RequestError("a comparison needs two files at least")
        self.question = question
        self.together = together
        self._files = [AskedFile(contender) for contender in contenders]
        self._contenders = tuple(contenders)
        self._thread = threading.Thread(target=self._run, daemon=True, name="compare")
        self._known: dict[int, tuple[tuple[object, ...], Agreement | None]] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End it; what has come so far stays."""
        for file in self._files:
            file.stop()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def poll(self) -> Report:
        """How it stands."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        sides = tuple(file.snapshot() for file in self._files)
        greedy = self.question.greedy
        found = tuple(self._agreement(i, sides) if greedy else None for i in range(1, len(sides)))
        return Report(self.question, sides, found, self.together, ended)

    def _agreement(self, index: int, sides: Sequence[Side]) -> Agreement | None:
        """Counted anew only when one of the two has changed."""
        pair = (sides[0], sides[index])
        version = tuple(part for s in pair for part in (s.state, len(s.token_ids), len(s.top)))
        if self._known.get(index, (None, None))[0] != version:
            self._known[index] = (version, agreement(*pair))
        return self._known[index][1]

    def _run(self) -> None:
        try:
            plans = self._plans()
            if self.together:
                self._all_at_once(plans)
            else:
                self._one_by_one(plans)
        finally:
            for file in self._files:
                file.close()

    def _one_by_one(self, plans: Sequence[_Planned | None]) -> None:
        first = self._files[0]
        for file, plan in zip(self._files, plans, strict=True):
            if plan is None:
                continue
            if file is not first and plan.needs > memory_now()[1]:
                first.close()  # idle it takes no time, but memory
            file.run(plan.choice, self.question)
            self._look_at_parting(file)
            if file is not first:
                file.close()

    def _all_at_once(self, plans: Sequence[_Planned | None]) -> None:
        threads = [
            threading.Thread(target=file.run, args=(plan.choice, self.question), daemon=True)
            for file, plan in zip(self._files, plans, strict=True)
            if plan is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for file in self._files[1:]:
            self._look_at_parting(file)

    def _look_at_parting(self, file: AskedFile) -> None:
        """How sure the first file and this one were where they part."""
        first = self._files[0]
        if file is first or not self.question.greedy:
            return
        found = agreement(first.snapshot(), file.snapshot())
        if found is not None and found.parting is not None and found.unit == "tokens":
            first.likeliest(found.parting.index)
            file.likeliest(found.parting.index)

    def _plans(self) -> list[_Planned | None]:
        """What to load for each; None for a file that cannot be read or has no room."""
        free = memory_now()[1]
        found: list[_Planned | None] = []
        for file, contender in zip(self._files, self._contenders, strict=True):
            found.append(None)
            try:
                choice = choose(contender.model, contender.options, PlanOptions(), "chat", slots=1)
                needs = estimate_settings(choice.file, choice.settings).total
            except IngotError as error:
                file.fail(str(error))
                continue
            except Exception as error:
                logger.exception("comparing %s", contender.model)
                file.fail(f"internal error: {type(error).__name__}: {error}")
                continue
            if needs > free:
                beside = " beside the others" if self.together else ""
                file.fail(f"it needs {human(needs)} of memory, {human(free)} are free{beside}")
                continue
            if self.together:
                free -= needs
            found[-1] = _Planned(choice, needs)
        return found


@dataclass(frozen=True, slots=True)
class _Planned:
    """What to load, and the bytes that it needs."""

    choice: Choice
    needs: int
