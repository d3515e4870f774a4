"""Jobs and servers that ran here: how long their rows were and how fast they went, by file and
settings; and what a plan's measurements say would have been faster for such rows.

A speed that was recorded counts for more than one that follows from trials, which are short.
"""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

from runtimes.engine.metrics import EngineStats
from runtimes.machine.cpu import available_cores, cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.state_file import load_state, save_entry
from runtimes.models.modelfile import ModelFile
from runtimes.planner.known import fingerprint_of
from runtimes.planner.plan import COMPARED, Figures, Plan
from runtimes.settings import RunnerSettings

_WORKS, _KEPT, _LATEST = "works", 128, 5
_MOST = 1e9  # of any of the numbers that are kept
_ENOUGH_S = 1.0  # of steps: what was over sooner says little
_NEAR = 1.5  # lengths that differ by no more are alike


@dataclass(frozen=True, slots=True)
class RowShape:
    """Tokens of a row on the mean: those computed of its prompt, and its answer."""

    prompt: float
    answer: float

    def alike(self, other: Self) -> bool:
        """Whether speeds with such rows tell something of each other."""
        pairs = ((self.prompt, other.prompt), (self.answer, other.answer))
        return all(max(pair) + 8 <= _NEAR * (min(pair) + 8) for pair in pairs)

    def __str__(self) -> str:
        return f"{self.prompt:,.0f} + {self.answer:,.0f} tokens"


@dataclass(frozen=True, slots=True)
class PastWork:
    """Runs of one kind. ``tps``: prompt and answer tokens a second of the latest of them."""

    file: str  # its fingerprint
    setting: list[Any]
    rows: int  # together
    shape: RowShape
    tps: list[float]


def remember_work(
    model: ModelFile, settings: RunnerSettings, stats: EngineStats, rows: int | None = None
) -> None:
    """Keep the speed of an engine that ends; of so many rows together, or as many as its steps had
    on the mean."""
    rows = rows or min(stats.slots, round(stats.decode_tokens / max(stats.steps, 1)))
    shape, seconds = shape_of(stats), stats.prefill_s + stats.decode_s
    if shape is None or not rows or stats.completions < 2 * rows:
        return
    tps = (stats.prompt_tokens + stats.completion_tokens) / seconds
    work = PastWork(fingerprint_of(model), _setting(settings), rows, shape, [tps])
    for one in past_works([model]):
        if replace(work, shape=one.shape, tps=one.tps) == one and one.shape.alike(shape):
            work = replace(one, tps=[*one.tps, tps][-_LATEST:])
    entry = {"machine": _machine(model), **asdict(work)}
    save_entry(_WORKS, json.dumps({**entry, "tps": None}), entry, _KEPT)


def shape_of(stats: EngineStats) -> RowShape | None:
    """The mean row of an engine; None where it did too little, or guessed tokens."""
    little = stats.prefill_s + stats.decode_s < _ENOUGH_S
    if little or stats.proposed_tokens or not (stats.decode_tokens and stats.prompt_tokens):
        return None
    count = stats.completions
    return RowShape(stats.prompt_tokens / count, stats.completion_tokens / count)


def past_works(models: Iterable[ModelFile]) -> list[PastWork]:
    """All that is known of these files on this machine, the latest last."""
    machines = {fingerprint_of(model): _machine(model) for model in models}
    found = []
    for entry in load_state(_WORKS).values():
        with suppress(KeyError, TypeError):  # what is damaged says nothing
            if entry["machine"] == machines.get(entry["file"]):
                values = {name: entry[name] for name in ("file", "setting", "rows", "tps")}
                work = PastWork(**values, shape=RowShape(**entry["shape"]))
                hash((*work.setting,))  # a key of ``best_change``
                sizes = (*work.tps, work.shape.prompt, work.shape.answer, work.rows)
                if work.tps and 0 < min(sizes) <= max(sizes) < _MOST:
                    found.append(work)
    return found


def _machine(model: ModelFile) -> list[Any]:
    installed = find_installed(model.runtime)
    library = installed and [installed.version, installed.identity]
    return [cpu_identity(), available_cores(), library]


def _setting(settings: RunnerSettings) -> list[Any]:
    """Settings that a plan chooses among, and speed depends on."""
    values = {name: getattr(settings, name) for name in COMPARED}
    return [*(values | {"threads": settings.threads or available_cores()}).values()]


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run: a file with settings, whose slots are the rows together. ``figures``: of
    trials, where there were any."""

    model: ModelFile
    settings: RunnerSettings
    figures: Figures | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Everything but the rows."""
        return self.model.path, *_setting(self.settings)


@dataclass(frozen=True, slots=True)
class FasterSetup:
    """A faster way to run. ``measured``: by real runs of both, else by trials."""

    to: Setup
    gain: float  # 0.18: 18% more tokens a second
    measured: bool


def best_change(
    now: Setup,
    plan: Plan | None,
    models: Sequence[ModelFile],
    shape: RowShape,
    *,
    least: float,
    allowed: Callable[[Setup], bool],
) -> FasterSetup | None:
    """The fastest for rows of this shape of what trials of ``plan`` or earlier runs have measured,
    if it is at least so much faster (0.1: 10%). Two that both ran are compared by that alone; where
    both ran with other numbers of rows, trials are corrected by the nearest of these."""
    tried = [*_tried(plan, models, now)]
    now = next((replace(now, figures=one.figures) for one in tried if one.kind == now.kind), now)
    known = {one.model: fingerprint_of(one.model) for one in (now, *tried)}
    runs: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for model, work in itertools.product(known, past_works(known)):
        if work.file == known[model] and work.shape.alike(shape):
            own = runs.setdefault((model.path, *work.setting), {})
            own.setdefault(work.rows, []).extend(work.tps)

    def speeds(one: Setup, rows: int) -> tuple[float, float, float]:
        """Tokens a second of real runs; by trials, times the part of it that runs with about as
        many rows had; by trials alone. 0 where none tells."""
        own = {n: statistics.median(tps) for n, tps in runs.get(one.kind, {}).items()}
        if one.figures is None:
            return own.get(rows, 0.0), 0.0, 0.0
        tps = partial(one.figures.job_tps, prompt=shape.prompt, answer=shape.answer)
        near = min(own, key=lambda count: abs(math.log(count / rows)), default=0)
        trust = own[near] / tps(near) if near else 0.0
        return own.get(rows, 0.0), tps(rows) * trust, tps(rows)

    found: list[FasterSetup] = []
    before = speeds(now, now.settings.slots)
    for one in (now, *tried):
        for rows in {*runs.get(one.kind, ()), *(one.figures.decode_tps if one.figures else ())}:
            to = replace(one, settings=replace(one.settings, slots=rows))
            pairs = zip(speeds(to, rows), before, (True, False, False), strict=True)
            gains = ((new / old - 1, measured) for new, old, measured in pairs if new and old)
            gain, measured = next(gains, (-1.0, False))
            if gain >= least and allowed(to):
                found.append(FasterSetup(to, gain, measured))
    return max(found, key=lambda change: change.gain, default=None)


def _tried(plan: Plan | None, models: Sequence[ModelFile], now: Setup) -> Iterator[Setup]:
    by_name = {model.path.name: model for model in models}
    for one in plan.alternatives if plan else ():
        if one.figures and one.file in by_name:
            changed = {name: getattr(one.settings, name) for name in COMPARED}
            yield Setup(by_name[one.file], replace(now.settings, **changed), one.figures)
