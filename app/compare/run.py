"""A comparison under way, for callers that look at it now and then."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from app.compare.agreement import agreement
from app.compare.asking import AskedFile
from app.compare.records import CompareReport, Contender, Question
from app.here import real
from app.models.entries import ModelEntry
from runtimes.errors import RequestError
from runtimes.machine.hardware import memory_now


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
        self._thread = threading.Thread(target=self._run, daemon=True, name="compare")

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

    def poll(self) -> CompareReport:
        """How it stands."""
        ended = self._thread.ident is not None and not self._thread.is_alive()
        sides = tuple(file.snapshot() for file in self._files)
        first, *others = sides
        greedy = self.question.greedy
        found = tuple(agreement(first, other) if greedy else None for other in others)
        return CompareReport(self.question, sides, found, self.together, ended)

    def _run(self) -> None:
        try:
            (self._all_at_once if self.together else self._one_by_one)(self._planned())
        finally:
            for file in self._files:
                file.close()

    def _planned(self) -> list[AskedFile]:
        """Those that can be read and have room."""
        free = memory_now()[1]
        found = []
        for file in self._files:
            if file.plan(free, " beside the others" if self.together else ""):
                found.append(file)
                free -= file.needs if self.together else 0
        return found

    def _one_by_one(self, planned: Sequence[AskedFile]) -> None:
        first = self._files[0]
        for file in planned:
            if file is not first and file.needs > memory_now()[1]:
                first.close()  # idle it takes no time, but memory
            file.run(self.question)
            self._look_at_parting(file)
            if file is not first:
                file.close()

    def _all_at_once(self, planned: Sequence[AskedFile]) -> None:
        with ThreadPoolExecutor(len(self._files)) as pool:
            list(pool.map(lambda file: file.run(self.question), planned))
        for file in planned:
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


def first_choice(entries: Sequence[ModelEntry], loaded: Path | None) -> list[ModelEntry]:
    """Two files to begin with: the loaded one and, of the same model, the one with the most bits,
    whose answers are nearest to the original's. Nothing when there is no such pair."""
    usable = [entry for entry in entries if entry.broken is None]
    here = real(loaded) if loaded is not None else None
    mine = next((entry for entry in usable if real(entry.path) == here), None)
    if mine is None:
        return []
    others = [e for e in usable if e.name == mine.name and e.key != mine.key]
    if not others:
        return []
    return [mine, max(others, key=lambda entry: (entry.bits or 0, entry.bytes or 0))]
