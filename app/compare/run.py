"""A comparison under way, for callers that look at it now and then."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from app.compare.agreement import agreement
from app.compare.asking import AskedFile
from app.compare.records import Agreement, Contender, Question, Report, Side
from app.options import PlanOptions
from app.planning import Choice, choose
from quantize.hub.store import human
from runtimes.errors import IngotError, RequestError
from runtimes.memory import estimate_settings


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
        sides = tuple(file.snapshot() for file in self._files)
        greedy = self.question.greedy
        found = tuple(self._agreement(i, sides) if greedy else None for i in range(1, len(sides)))
        return Report(self.question, sides, found, self.together)

    def _agreement(self, index: int, sides: Sequence[Side]) -> Agreement | None:
        """Counted anew only when one of the two has changed."""
        pair = (sides[0], sides[index])
        version = tuple(part for s in pair for part in (s.state, len(s.token_ids), len(s.text)))
        if self._known.get(index, (None, None))[0] != version:
            self._known[index] = (version, agreement(*pair))
        return self._known[index][1]

    def _run(self) -> None:
        choices = self._choices()
        if not self.together:
            for file, choice in zip(self._files, choices, strict=True):
                if choice is not None:
                    file.run(choice, self.question)
            return
        threads = [
            threading.Thread(target=file.run, args=(choice, self.question), daemon=True)
            for file, choice in zip(self._files, choices, strict=True)
            if choice is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _choices(self) -> list[Choice | None]:
        """What to load for each; None for a file that cannot be read or has no room."""
        import psutil

        free = psutil.virtual_memory().available
        found: list[Choice | None] = []
        for file, contender in zip(self._files, self._contenders, strict=True):
            found.append(None)
            try:
                choice = choose(contender.model, contender.options, PlanOptions(), "chat", slots=1)
                needs = estimate_settings(choice.file, choice.settings).total
            except IngotError as error:
                file.fail(str(error))
                continue
            if needs > free:
                beside = " beside the others" if self.together else ""
                file.fail(f"it needs {human(needs)} of memory, {human(free)} are free{beside}")
                continue
            if self.together:
                free -= needs
            found[-1] = choice
        return found
