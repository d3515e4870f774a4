"""How a run goes, put together from its events (docs/quantize.md lists them)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

_INTERRUPTED = 130
_TERMINATED = 143


class StageState(StrEnum):
    """Of one stage."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class State(StrEnum):
    """Of a run, and of each of its recipes.

    PARTLY is a run that has kept files back because they are too far from the original.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PARTLY = "partly"
    KEPT_BACK = "kept back"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Stage:
    """One stage; ``begin`` in seconds since 1970, ``seconds`` once it has ended. ``recipe`` is the
    one that it works for, None for all of them; ``step`` what it does where nothing is counted."""

    number: int
    text: str
    begin: float
    depth: int = 0
    recipe: str | None = None
    state: StageState = StageState.RUNNING
    seconds: float | None = None
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    rate: float | None = None
    seconds_left: float | None = None
    step: str = ""

    @property
    def share(self) -> float | None:
        """How much is done, 0 to 1; None where that is not known."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(slots=True)
class Melt:
    """A run so far. ``state`` changes when its process has ended; until then ``outcome`` says what
    it will be, once that is known.

    ``notes`` are what the user should know, ``kept_back`` why a recipe's file is not published,
    ``files`` the published ones by recipe, ``sizes`` their bytes, ``already`` those that an earlier
    run has built.
    """

    recipes: tuple[str, ...]
    state: State = State.RUNNING
    outcome: State | None = None
    stages: list[Stage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    kept_back: dict[str, str] = field(default_factory=dict)
    already: set[str] = field(default_factory=set)
    error: str = ""
    exit_code: int | None = None
    manifest: Path | None = None
    begin: float | None = None
    end: float | None = None

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event. Unknown kinds, which may come, change nothing."""
        take = getattr(self, f"_take_{event.get('event')}", None)
        self.end = float(event.get("time", self.end or 0.0))
        if take is not None:
            take(event)

    def ended(self, code: int, last_words: str = "", *, stopped: bool = False) -> None:
        """The process is gone, with this code; ``last_words`` is the end of what it said, and
        ``stopped`` says that the user wanted it."""
        self.exit_code = code
        for stage in self.running():
            stage.state = StageState.FAILED
        self.state = State.STOPPED if stopped else self.outcome or State.FAILED
        if self.state is State.STOPPED:
            self.error = ""
        if self.outcome is not None or stopped:
            return
        how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
        self.error = last_words.strip() or f"the run {how} and said nothing"

    def running(self) -> list[Stage]:
        """Open stages, the outermost first."""
        return [stage for stage in self.stages if stage.state is StageState.RUNNING]

    def state_of(self, recipe: str) -> State:
        """How far a recipe's file is."""
        if recipe in self.kept_back:
            return State.KEPT_BACK
        if any(stage.recipe == recipe for stage in self.running()):
            return State.RUNNING
        if recipe in self.files or recipe in self.already or self.state is State.DONE:
            return State.DONE
        return State.WAITING if self.state is State.RUNNING else State.STOPPED

    @property
    def finished(self) -> int:
        """Recipes that need no more work."""
        return sum(self.state_of(r) in (State.DONE, State.KEPT_BACK) for r in self.recipes)

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return (self.end or 0.0) - (self.begin or self.end or 0.0)

    def _take_start(self, event: Mapping[str, Any]) -> None:
        self.begin = float(event["time"])

    def _take_stage_begin(self, event: Mapping[str, Any]) -> None:
        parent = self._stage(event.get("parent"))
        text = str(event["text"])
        recipe = recipe_in(text, self.recipes) or (parent.recipe if parent else None)
        depth = parent.depth + 1 if parent else 0
        self.stages.append(Stage(int(event["stage"]), text, float(event["time"]), depth, recipe))

    def _take_progress(self, event: Mapping[str, Any]) -> None:
        if (stage := self._stage(event.get("stage"))) is not None:
            stage.done, stage.total = float(event["done"]), event.get("total")
            stage.unit, stage.rate = str(event.get("unit", "")), event.get("rate")
            stage.seconds_left = event.get("seconds_left")

    def _take_step(self, event: Mapping[str, Any]) -> None:
        if (stage := self._stage(event.get("stage"))) is not None:
            stage.step = str(event["text"])

    def _take_stage_end(self, event: Mapping[str, Any]) -> None:
        if (stage := self._stage(event.get("stage"))) is not None:
            stage.state = StageState.DONE if event.get("ok", True) else StageState.FAILED
            stage.seconds = float(event["seconds"])

    def _take_note(self, event: Mapping[str, Any]) -> None:
        text = str(event["text"])
        if text not in self.notes:  # each file of a model says the same of its tokenizer
            self.notes.append(text)
        if "is already built" in text and (recipe := recipe_in(text, self.recipes)):
            self.already.add(recipe)
        self._keep_back([text])

    def _take_file(self, event: Mapping[str, Any]) -> None:
        recipe = str(event["entry"]["recipe"])
        self.files[recipe], self.sizes[recipe] = Path(event["path"]), int(event["entry"]["bytes"])

    def _take_error(self, event: Mapping[str, Any]) -> None:
        self.error, self.exit_code = str(event["text"]), int(event["exit_code"])
        if self.exit_code in (_INTERRUPTED, _TERMINATED):
            self.outcome = State.STOPPED
            return
        self._keep_back(self.error.splitlines())
        partly = event.get("kind") in ("QualityError", "UnfinishedError")
        self.outcome = State.PARTLY if partly else State.FAILED

    def _take_done(self, event: Mapping[str, Any]) -> None:
        self.outcome, self.manifest = State.DONE, Path(event["manifest"])

    def _keep_back(self, lines: Iterable[str]) -> None:
        """Lines such as "q4_0 is too far from the float model: ...", "q4_0 is not built: ..."."""
        for line in lines:
            for begin in (" is too far from the float model: ", " is not built: "):
                name, found, why = line.partition(begin)
                if found and name in self.recipes:
                    self.kept_back[name] = why

    def _stage(self, number: Any) -> Stage | None:
        return next((s for s in reversed(self.stages) if s.number == number), None)


def recipe_in(text: str, recipes: Iterable[str]) -> str | None:
    """The recipe that ``text`` names, be it as a part of a file's name; the longest one counts."""
    for name in sorted(recipes, key=len, reverse=True):
        if re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_-])", text):
            return name
    return None
