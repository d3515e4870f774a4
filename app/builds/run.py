"""A run of `quantize`: its settings, checked and written as the command that does it; its process,
and its state by the events that it writes (docs/quantize.md lists them)."""

import itertools
import json
import logging
import math
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.figures import duration
from app.here import at_home
from quantize.disk import human
from quantize.errors import UsageError
from quantize.hub.client import parse_hub_name
from quantize.options import MeasureOptions, Options, SourceOptions
from quantize.progress import amount, clock
from quantize.recipes import PRESETS, RECIPES, Recipe, choose_recipes, find_recipe, known_recipe
from runtimes.machine.processes import Child

TARGETS = "kl0.02, 1.2GB, 4.5bpw or fits-8GB-8192"
DEFAULT_RECIPES = tuple(recipe.name for recipe in choose_recipes())


class FieldError(UsageError):
    """``field`` of `Settings` cannot be used as it is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Settings:
    """Values as the user typed them; "" is left to quantize."""

    model: str
    recipes: tuple[str, ...] = DEFAULT_RECIPES
    targets: str = ""  # by name, such as "kl0.02, 1.2GB"
    out: str = ""
    imatrix: str = ""
    lora: str = ""
    measure: bool = True
    fresh: bool = False

    def options(self) -> Options:
        """Read the values as the command does. Raises FieldError that says what to change."""
        if not self.model.strip():
            raise FieldError("model", "name a model: a folder, a .gguf file of floats, or ORG/NAME")
        targets = tuple(_target(name) for name in self.target_names)
        if not self.recipes and not targets:
            raise FieldError("recipes", "choose at least one recipe")
        if not self.from_hub and not _path(self.model).exists():
            raise FieldError(
                "model", f"there is no folder {self.model}; on the hub models are ORG/NAME"
            )
        if self.imatrix and not _path(self.imatrix).is_file():
            raise FieldError("imatrix", f"there is no file {self.imatrix}")
        return Options(
            SourceOptions(self.source, lora=_given(self.lora)),
            (*(find_recipe(name) for name in self.recipes), *targets),
            out=_path(self.out) if self.out.strip() else None,
            measure=MeasureOptions(enabled=self.measure),
            imatrix=_path(self.imatrix) if self.imatrix.strip() else None,
            fresh=self.fresh,
        )

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of targets, each once, as typed."""
        return tuple(dict.fromkeys(n for n in re.split(r"[,;\s]+", self.targets.lower()) if n))

    @property
    def source(self) -> str:
        """MODEL for the command: ~ means the home folder, as in a shell."""
        return self.model.strip() if self.from_hub else str(_path(self.model))

    @property
    def from_hub(self) -> bool:
        """Whether it is a name on the hub; a folder of that name comes first."""
        return not _path(self.model).exists() and parse_hub_name(self.model.strip()) is not None

    def arguments(self) -> list[str]:
        """Return the arguments of `quantize`; raises FieldError as ``options``."""
        options = self.options()
        recipes = ",".join(recipe.name for recipe in options.recipes)
        given = {"--out": options.out, "--imatrix": options.imatrix, "--lora": options.source.lora}
        pairs = [(flag, str(value)) for flag, value in given.items() if value is not None]
        flags = ["--no-measure"] * (not self.measure) + ["--fresh"] * self.fresh
        return [self.source, "--recipe", recipes, *itertools.chain(*pairs), *flags]


def offered() -> tuple[Recipe, ...]:
    """Every recipe for processors: the usual ones first, then llama.cpp's further types, then
    floats."""
    here = [name for name, recipe in RECIPES.items() if not recipe.for_gpus]
    others = sorted(here, key=lambda name: RECIPES[name].is_float)
    return tuple(RECIPES[name] for name in dict.fromkeys((*DEFAULT_RECIPES, *PRESETS, *others)))


def estimated_size(parameters: int, recipe: Recipe) -> int:
    """Bytes of a file by its bits a weight. Small models' files are larger: their embedding, which
    keeps more bits, is more of them."""
    return int(parameters * recipe.bits_per_weight / 8)


def _target(name: str) -> Recipe:
    try:
        found = known_recipe(name)
    except UsageError as error:
        raise FieldError("targets", str(error)) from error
    if found is None or found.target is None:
        raise FieldError("targets", f"{name} is no target, such as {TARGETS}")
    return found


def _path(text: str) -> Path:
    return at_home(text.strip())


def _given(text: str) -> str | None:
    """A folder or a name on the hub."""
    path = _path(text)
    return (str(path) if path.exists() else text.strip()) if text.strip() else None


_COUNTED = ("done", "total", "unit", "rate", "seconds_left")  # of the event "progress"
_STOPPED_CODES = (130, 143)  # by SIGINT, by SIGTERM
_KEPT_BACK = re.compile(r"(\S+) is (?:too far from the float model|not built): (.*)", re.DOTALL)


class RunState(StrEnum):
    """State of a run, of one of its recipes, or of one of its stages."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PARTLY = "partly"  # a run that has kept files back: they are too far from the original
    KEPT_BACK = "kept back"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class RunStage:
    """One step of a run."""

    number: int
    text: str
    begin: float  # in seconds since 1970
    depth: int = 0
    recipe: str | None = None  # the one that it works for; None for all of them
    state: RunState = RunState.RUNNING  # or DONE, or FAILED
    seconds: float | None = None  # once it has ended
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    rate: float | None = None
    seconds_left: float | None = None
    step: str = ""  # what it does where nothing is counted


@dataclass(slots=True)
class QuantizeRun:
    """A run so far."""

    recipes: tuple[str, ...]
    state: RunState = RunState.RUNNING  # changes when the process has ended
    outcome: RunState | None = None  # what ``state`` will be, once that is known
    stages: list[RunStage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the user should know
    files: dict[str, Path] = field(default_factory=dict)  # published ones by recipe
    sizes: dict[str, int] = field(default_factory=dict)  # their bytes
    kept_back: dict[str, str] = field(default_factory=dict)  # why a file is not published
    already: set[str] = field(default_factory=set)  # recipes that an earlier run has built
    error: str = ""
    manifest: Path | None = None
    begin: float | None = None
    end: float | None = None

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event. Unknown kinds, which may come, change nothing."""
        self.end = float(event.get("time", self.end or 0.0))
        text = str(event.get("text", ""))
        stage = self._stage(event.get("stage"))
        match event.get("event"):
            case "start":
                self.begin = self.end
            case "stage_begin":
                parent = self._stage(event.get("parent"))
                recipe = recipe_in(text, self.recipes) or (parent.recipe if parent else None)
                depth = parent.depth + 1 if parent else 0
                self.stages.append(RunStage(event["stage"], text, self.end, depth, recipe))
            case "progress" if stage is not None:
                for name in _COUNTED:
                    setattr(stage, name, event[name])
            case "step" if stage is not None:
                stage.step = text
            case "stage_end" if stage is not None:
                stage.state = RunState.DONE if event["ok"] else RunState.FAILED
                stage.seconds = event["seconds"]
            case "note":
                self._take_note(text)
            case "file":
                entry = event["entry"]
                self.files[entry["recipe"]] = Path(event["path"])
                self.sizes[entry["recipe"]] = entry["bytes"]
            case "error":
                self._take_error(text, event["exit_code"], event.get("kind"))
            case "done":
                self.outcome, self.manifest = RunState.DONE, Path(event["manifest"])

    def ended(self, code: int, last_words: str = "", *, stopped: bool = False) -> None:
        """The process is gone, with this code; ``last_words`` is the end of what it said, and
        ``stopped`` says that the user wanted it."""
        for stage in self.running():
            stage.state = RunState.FAILED
        self.state = RunState.STOPPED if stopped else self.outcome or RunState.FAILED
        if self.state is RunState.STOPPED:
            self.error = ""
        elif self.outcome is None:
            how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
            self.error = last_words.strip() or f"the run {how} and said nothing"

    def running(self) -> list[RunStage]:
        """Open stages, the outermost first."""
        return [stage for stage in self.stages if stage.state is RunState.RUNNING]

    def state_of(self, recipe: str) -> RunState:
        """How far a recipe's file is."""
        if recipe in self.kept_back:
            return RunState.KEPT_BACK
        if any(stage.recipe == recipe for stage in self.running()):
            return RunState.RUNNING
        if recipe in self.files or recipe in self.already or self.state is RunState.DONE:
            return RunState.DONE
        return RunState.WAITING if self.state is RunState.RUNNING else RunState.STOPPED

    @property
    def finished(self) -> int:
        """Recipes that need no more work."""
        return sum(self.state_of(r) in (RunState.DONE, RunState.KEPT_BACK) for r in self.recipes)

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return (self.end or 0.0) - (self.begin or self.end or 0.0)

    def _take_note(self, text: str) -> None:
        if text not in self.notes:  # each file of a model says the same of its tokenizer
            self.notes.append(text)
        if "is already built" in text and (recipe := recipe_in(text, self.recipes)):
            self.already.add(recipe)
        self._keep_back([text])

    def _take_error(self, text: str, code: int, kind: str | None) -> None:
        self.error = text
        if code in _STOPPED_CODES:
            self.outcome = RunState.STOPPED
            return
        self._keep_back(text.splitlines())
        partly = kind in ("QualityError", "UnfinishedError")
        self.outcome = RunState.PARTLY if partly else RunState.FAILED

    def _keep_back(self, lines: Iterable[str]) -> None:
        """Lines such as "q4_0 is too far from the float model: ..."."""
        for line in lines:
            if (found := _KEPT_BACK.match(line)) and found[1] in self.recipes:
                self.kept_back[found[1]] = found[2]

    def _stage(self, number: Any) -> RunStage | None:
        return next((s for s in reversed(self.stages) if s.number == number), None)


def recipe_in(text: str, recipes: Iterable[str]) -> str | None:
    """The recipe that ``text`` names, be it as a part of a file's name; the longest one counts."""
    for name in sorted(recipes, key=len, reverse=True):
        if re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_-])", text):
            return name
    return None


# A run in lines for people; colour alone says nothing

SIGNS = {RunState.RUNNING: "▶", RunState.DONE: "✓", RunState.FAILED: "✗", RunState.KEPT_BACK: "✗"}
_ENDS = {
    RunState.DONE: "done",
    RunState.PARTLY: "done, but not every file could be made or is good enough",
    RunState.STOPPED: "stopped; starting it again resumes from what is finished",
    RunState.FAILED: "failed; starting it again resumes from what is finished",
}


def headline(run: QuantizeRun, now: float) -> str:
    """The run in one line. ``now`` is in seconds since 1970."""
    files = f"{run.finished} of {len(run.recipes)} file{'s' * (len(run.recipes) > 1)} ready"
    if run.state is RunState.RUNNING:
        since = f"running {clock(now - run.begin)}" if run.begin else "starting"
        return f"{since}, {files}"
    return f"{_ENDS[run.state]} ({duration(run.seconds)}, {files})"


def recipe_notes(run: QuantizeRun) -> list[tuple[str, RunState, str]]:
    """Each recipe with its state, and what is done to it now, or known of its file."""
    told = []
    for recipe in run.recipes:
        state, more = run.state_of(recipe), ""
        match state:
            case RunState.RUNNING:
                more = next(s.text for s in reversed(run.running()) if s.recipe == recipe)
            case RunState.KEPT_BACK:
                more = run.kept_back[recipe]
            case RunState.DONE:
                there = "was there" if recipe in run.already else ""
                more = human(run.sizes[recipe]) if recipe in run.sizes else there
        told.append((recipe, state, more))
    return told


def stage_line(stage: RunStage, now: float) -> str:
    """A stage: its sign, and its time, or while it runs how far it is and what is left."""
    text = f"{'  ' * stage.depth}{SIGNS[stage.state]} {stage.text}"
    runs = stage.state is RunState.RUNNING
    return f"{text} · {stage_state(stage, now) if runs else duration(stage.seconds or 0.0)}"


def stage_state(stage: RunStage, now: float) -> str:
    """How far a stage that runs is, how fast, and what is left."""
    share = f"{min(stage.done / stage.total, 1):.0%}" if stage.total else ""
    counted = (share or amount(stage.done, stage.unit)) if stage.done else stage.step
    rate = f"{amount(stage.rate, stage.unit)}/s" if stage.rate is not None else ""
    left = clock(now - stage.begin)
    if stage.seconds_left is not None:
        left = f"{clock(stage.seconds_left)} left"
    return ", ".join(filter(None, (counted, rate, left)))


# The process that does a run: started, listened to, stopped.

logger = logging.getLogger(__name__)

_LINES = 8  # the last of what the process says besides its events
_GENTLE_S = 20.0  # to clean up before it is killed; files may be large


class QuantizeProcess:
    """`quantize --json` in a session of its own: keys of this terminal do not reach it.

    ``poll`` is for one thread; the others may be called from any.
    """

    def __init__(self, settings: Settings) -> None:
        """Start it. Raises UsageError as ``Settings.options``, before anything runs."""
        arguments = settings.arguments()
        self.settings = settings
        self.run = QuantizeRun(tuple(recipe.name for recipe in settings.options().recipes))
        self.stopping = False
        self._kill_at = math.inf  # once it is told to end
        self._rest = b""  # of an event that is not whole yet
        # Files, not pipes: no thread has to read them, and the run may go on without the app.
        self._folder = tempfile.TemporaryDirectory(
            prefix="ingot-quantize-", ignore_cleanup_errors=True
        )
        told, self._said = (Path(self._folder.name) / name for name in ("events", "said"))
        with told.open("wb") as out, self._said.open("wb") as said:
            self._process = Child(
                *("-m", "quantize", *arguments, "--json"),
                environment={"PYTHONUNBUFFERED": "1"},
                outlives=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,
            )
        self._events = told.open("rb")
        logger.info("quantize %s", " ".join(arguments))

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def poll(self) -> bool:
        """Bring ``run`` up to date; False once it has ended and all of it is known."""
        ended = not self.running
        if time.monotonic() > self._kill_at:
            logger.warning("the run does not end; it is killed")
            self._process.kill()
        *lines, self._rest = (self._rest + self._events.read()).split(b"\n")
        for line in lines:
            event = None
            with suppress(ValueError):
                event = json.loads(line)
            if isinstance(event, dict):
                self.run.apply(event)
        if ended and self.run.state is RunState.RUNNING:
            code, said = self._process.returncode, self._said.read_text(errors="replace")
            words = said.rstrip().split("\n")[-_LINES:]
            last = [line.rstrip().rsplit("\r", 1)[-1] for line in words]
            self.run.ended(code, "\n".join(last), stopped=self.stopping and code != 0)
            level = logging.WARNING if self.run.error else logging.INFO
            why = f": {self.run.error}" if self.run.error else ""
            logger.log(level, "quantize %s: %s%s", self.settings.model, self.run.state, why)
        return not ended

    def stop(self) -> bool:
        """End it; what is finished is kept. Returns at once: False when nothing is to be ended."""
        if self.stopping or not self.running:
            return False
        self.stopping, self._kill_at = True, time.monotonic() + _GENTLE_S
        self._process.terminate()
        return True

    def wait(self, timeout: float) -> None:
        """For its end, at most so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
