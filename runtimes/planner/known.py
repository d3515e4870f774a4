"""Plans that were made before: found again by model, machine, libraries and what was asked.

Nothing native is imported, and a folder that has not changed is not read again.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runtimes.errors import ModelError
from runtimes.machine.cpu import cpu_identity
from runtimes.machine.installed import find_installed
from runtimes.machine.state_file import load_state, save_entry
from runtimes.models.modelfile import ModelFile, files_of, fingerprint, reading
from runtimes.models.registry import MODULES
from runtimes.planner.candidates import PlanTask
from runtimes.planner.plan import SHORT_PROMPT, Plan

_PLANS, _SEEN = "plans", "fingerprints"
_REVISION = 3  # of the planner: what an older one chose does not count
_PLANS_KEPT, _SEEN_KEPT = 64, 256

_MOST_POWER = 20  # of two: plans are looked for up to a depth of a million tokens


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan, when it was made (seconds since 1970), and where its file was then."""

    plan: Plan
    made: float
    path: Path


def load_plan(models: Sequence[ModelFile], task: PlanTask, *, nearest: bool = False) -> Plan | None:
    """The remembered plan for these files and this task; None when there is none.

    The depth counts in powers of two; ``nearest`` also takes the plan of the nearest other one. A
    plan whose memory is no longer free is not recalled.
    """
    own = _power(task.depth)
    powers = range(max(own, _MOST_POWER) + 1) if nearest else (own,)
    plans = load_state(_PLANS)
    for key in _keys(models, task, sorted(powers, key=lambda power: abs(power - own))):
        try:
            record = plans[key]
            plan = Plan.from_json(record["plan"])
            path = {fingerprint_of(model): str(model.path) for model in models}[record["file"]]
        except (KeyError, TypeError, ValueError, ModelError):
            continue
        if plan.memory <= task.free:
            return replace(plan, path=path)
    return None


def save_plan(models: Sequence[ModelFile], task: PlanTask, plan: Plan) -> None:
    """Keep ``plan`` for the next time."""
    chosen = next(model for model in models if str(model.path) == plan.path)
    record = {
        "file": fingerprint_of(chosen),
        "plan": plan.to_json(),
        "made": time.time(),
        "path": str(chosen.path.resolve()),
    }
    [key] = _keys(models, task, [_power(task.depth)])
    save_entry(_PLANS, key, record, _PLANS_KEPT)


def made_plans() -> list[MadePlan]:
    """Every remembered plan, the latest first, whatever it was made for. Those that older versions
    wrote without a date are left out."""
    found = []
    for record in load_state(_PLANS).values():
        try:
            plan, path = Plan.from_json(record["plan"]), Path(record["path"])
            if path.name:
                found.append(MadePlan(plan, float(record["made"]), path))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return sorted(found, key=lambda one: one.made, reverse=True)


def fingerprint_of(model: ModelFile) -> str:
    """``fingerprint``, remembered for a file that has not been changed or replaced."""
    path = model.path.resolve()
    stamp = _stamp(model)
    match load_state(_SEEN).get(str(path)):
        case [before, str(known)] if before == stamp:
            return known
    found = fingerprint(model)
    save_entry(_SEEN, str(path), [stamp, found], _SEEN_KEPT)
    return found


def _power(depth: int) -> int:
    """The depth's nearest power of two. Depths up to SHORT_PROMPT are measured alike."""
    return round(math.log2(max(depth, SHORT_PROMPT)))


def _keys(models: Sequence[ModelFile], task: PlanTask, powers: Iterable[int]) -> Iterator[str]:
    """The task's key at each of these depths."""
    libraries = [
        (runtime, installed.version, installed.identity)
        for runtime in MODULES
        if (installed := find_installed(runtime))
    ]
    asked = (task.workload, task.profile, task.cores, sorted(task.gpus), asdict(task.overrides))
    files = sorted(fingerprint_of(model) for model in models)
    for power in powers:
        parts = (_REVISION, cpu_identity(), libraries, asked, files, power)
        yield hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _stamp(model: ModelFile) -> str:
    """Names, sizes and times of everything in it, and which file it is: one that is put into the
    place of another may have its size, and may have been given its time."""
    digest = hashlib.sha256()
    with reading(model.path):
        for file in files_of(model):
            status = file.stat()
            own = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update(f"{file.name} {own}\n".encode())
    return digest.hexdigest()[:32]
