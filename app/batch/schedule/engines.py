"""A job whose input is open and whose model is chosen (``JobPlan``), and its engines: how many,
where each of them runs, with how many slots, whether they fit, and their loading."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from app.batch.input.source import Source
from app.batch.schedule.pool_engine import Beginning, PoolEngine
from app.batch.settings import JobSettings
from app.batch.spec import BatchSpec
from app.models.library import load_engine
from app.models.planning import LoadChoice
from app.models.prefixes import NONE_SAVED, SavedPrefixes
from runtimes.errors import OutOfMemoryError, RequestError
from runtimes.machine.cpu import Core, cores, shares
from runtimes.machine.gpus import find_gpus
from runtimes.machine.hardware import memory_now
from runtimes.machine.selftest import ensure
from runtimes.models.memory import estimate, gib, largest_slots
from runtimes.models.modelfile import ModelFile, RuntimeName
from runtimes.models.registry import backend
from runtimes.settings import RunnerSettings
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.process import Placement
from runtimes.worker.recovery import DeathLimit

Count = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job that is ready to run: its ``spec`` with input, model and settings."""

    spec: BatchSpec
    source: Source
    choice: LoadChoice
    settings: JobSettings
    engines: Count = 1
    prefixes: SavedPrefixes = NONE_SAVED


# The GPUs that engines of a job are dealt out to, and how an engine is kept on one of them.


VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """One GPU."""

    name: str  # for people
    free: int | None  # bytes of its memory; None where it does not tell
    visible: str | None = None  # what names it in CUDA_VISIBLE_DEVICES, where that chooses it
    device: str = "auto"  # ``RunnerSettings.device`` of its engines


def gpus_for(runtime: RuntimeName, settings: RunnerSettings) -> tuple[EngineGpu, ...]:
    """Return the GPUs that engines with these settings are dealt out to; a single engine takes all.
    Where the runtime has devices, this takes the second of its self-test."""
    if not backend(runtime).allows_gpu(settings):
        return ()
    found = ensure(runtime).devices
    if found:  # what is free of their memory is wanted as it is now
        found = ensure(runtime, again=True).devices
    auto, named = settings.device == "auto", settings.device.replace(" ", "").split(",")
    found = tuple(one for one in found if (one.auto if auto else one.name in named))
    # NVIDIA's are chosen for the whole process: CUDA takes memory on each that it sees.
    if auto and any(one.name.startswith("CUDA") for one in found):
        return _nvidia_gpus()
    return tuple(EngineGpu(one.name, one.memory_free, device=one.name) for one in found)


def _nvidia_gpus() -> tuple[EngineGpu, ...]:
    """The GPUs that a process started here sees."""
    gpus = {str(gpu.index): gpu for gpu in find_gpus()}
    named = os.environ.get(VISIBLE)
    names = gpus if named is None else filter(None, named.replace(" ", "").split(","))
    # A name that is no number (a UUID) cannot be looked up: it is left to CUDA.
    first = next(iter(gpus.values()), None)
    return tuple(
        EngineGpu(f"GPU {name}", gpus.get(name, first).memory_free, name)
        for name in names
        if first is not None
    )


_MOST_SLOTS = 16  # of each engine when nobody said
# What the model may take of the free memory: prefixes that are kept for later, and whatever else
# the machine does, need some too.
_SHARE = 0.75

# Which deaths end a job is the job's own to say, by what comes of the rows between them.
_DEATHS = DeathLimit(deaths=sys.maxsize)


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    """Place of one engine. ``where`` is for people, empty for one that has the whole machine."""

    name: str
    where: str = ""
    place: Placement = field(default_factory=Placement)
    threads: int | None = None
    gpu: EngineGpu | None = None


@contextmanager
def local_engines(plan: JobPlan, rows: int) -> Iterator[list[PoolEngine]]:
    """The engines that the plan asks for, for so many rows; they end with the block. Entering it
    raises RequestError, ModelError, RuntimeMissingError or OutOfMemoryError."""
    choice = plan.choice
    placed = placements(plan.engines, choice)
    settings = replace(choice.settings, slots=slots_for(plan, rows, len(placed)))
    require_room(choice, settings, placed)
    engines = load_engines(choice, settings, placed)
    try:
        yield [
            PoolEngine(
                engine,
                placement.name,
                partial(str, placement.where),
                beginning=Beginning(plan.prefixes, engine, settings),
            )
            for engine, placement in zip(engines, placed, strict=True)
        ]
    finally:
        for engine in engines:
            engine.close()


def slots_for(plan: JobPlan, rows: int, engines: int, *, here: bool = True) -> int:
    """For each of ``engines``: as many as were asked for; else as many as planned, or as fit if
    they run ``here``, but together no more than rows."""
    choice = plan.choice
    if plan.spec.slots is not None:
        return choice.settings.slots
    rows = -(-rows // engines)
    if choice.planned or not here:
        most = choice.settings.slots if choice.planned else _MOST_SLOTS
        return max(1, min(most, rows))
    return default_slots(choice.file, choice.settings, rows, free_memory() // engines)


def default_slots(model: ModelFile, settings: RunnerSettings, rows: int, free_bytes: int) -> int:
    """As many slots as there are rows, up to 16, as long as all of it fits ``free_bytes``."""
    return max(1, largest_slots(model, settings, int(free_bytes * _SHARE), min(_MOST_SLOTS, rows)))


def free_memory() -> int:
    """Bytes that can be had without swapping."""
    return memory_now()[1]


def parse_count(text: str) -> Count:
    """From `--engines`. Raises RequestError."""
    if text == "auto":
        return "auto"
    if text.isascii() and text.isdigit() and 0 < int(text) < 1000:
        return int(text)
    raise RequestError(f"--engines must be a number from 1 on, or auto, not {text[:40]!r}")


def placements(wanted: Count, choice: LoadChoice) -> list[EnginePlacement]:
    """A placement for each engine: one a GPU if GPUs are to be used, else one for each share of the
    cores; as many as GPUs or NUMA nodes for ``auto``.

    Raises RequestError for more engines than the cores can be dealt out to.
    """
    # A single engine takes what ``auto`` finds, without being told.
    gpus = () if wanted == 1 else gpus_for(choice.file.runtime, choice.settings)
    found = cores()
    nodes = len({core.node for core in found})
    count = (len(gpus) or max(1, nodes)) if wanted == "auto" else wanted
    if count == 1:
        return [EnginePlacement("the engine")]
    if found and count > len(found) and not gpus:
        raise RequestError(
            f"--engines {count}: there are {len(found)} cores, and each engine needs one of its own"
        )
    # More engines than cores are for GPUs: they share the cores as they like.
    dealt = shares(found, count) if len(found) >= count else ((),) * count
    return [_seat(i, share, choice.settings.threads, gpus) for i, share in enumerate(dealt)]


def require_room(
    choice: LoadChoice, settings: RunnerSettings, placed: Sequence[EnginePlacement]
) -> None:
    """Raise OutOfMemoryError, saying how many would fit, if there is too little memory for all of
    the engines together. A single one is checked where it is loaded."""
    if len(placed) == 1:
        return
    need = estimate(choice.file, settings).total
    if any(placement.gpu is not None for placement in placed):
        if settings.gpu_layers >= 0:
            return  # how much of it lies on the GPU is not known
        on = Counter(placement.gpu for placement in placed if placement.gpu is not None)
        free = {gpu: gpu.free for gpu in on if gpu.free is not None}
        if all(on[gpu] * need <= room for gpu, room in free.items()):
            return
        fit = sum(room // need for room in free.values())
        said = f"{gib(min(free.values()))} of GPU memory are free"
    else:
        fit, said = free_memory() // need, f"{gib(free_memory())} are free"
        if fit >= len(placed):
            return
    raise OutOfMemoryError(
        f"{len(placed)} engines with {settings.slots} slots each need {gib(need)} each; {said}. "
        + (f"What fits: --engines {fit}; or try" if fit else "Not even one fits; try")
        + " fewer --slots or a smaller --context"
    )


def load_engines(
    choice: LoadChoice, settings: RunnerSettings, placed: Sequence[EnginePlacement]
) -> list[WorkerEngine]:
    """An engine for each placement. The first is loaded alone, which shows whether it can be at
    all and brings the file into memory; then the others at the same time.

    Raises as ``load_engine``; none is left then, and none after Ctrl-C.
    """
    # Nobody waits for a single row: prompts go in as fast as they can.
    scheduling = replace(choice.scheduling, max_stall_s=None)
    begun: list[WorkerEngine] = []
    failed = False

    def begin(engine: WorkerEngine) -> None:
        begun.append(engine)
        if failed:
            engine.close()

    def load(placement: EnginePlacement) -> WorkerEngine:
        own = replace(settings, threads=placement.threads or settings.threads)
        if placement.gpu is not None:
            own = replace(own, device=placement.gpu.device)
        return load_engine(
            choice.file,
            own,
            scheduling,
            adapters=choice.adapters,
            begun=begin,
            place=placement.place,
            deaths=_DEATHS,
        )

    pool = ThreadPoolExecutor(len(placed), "ingot-load")
    try:
        first = load(placed[0])
        others = [pool.submit(load, placement) for placement in placed[1:]]
        for other in as_completed(others):
            other.result()  # of several failures the first one tells why
        return [first, *(other.result() for other in others)]
    except BaseException:
        failed = True
        for engine in list(begun):
            engine.close()
        raise
    finally:
        pool.shutdown()


def _seat(
    at: int, share: Sequence[Core], threads: int | None, gpus: Sequence[EngineGpu]
) -> EnginePlacement:
    cpus = tuple(sorted(cpu for core in share for cpu in core.cpus))
    most = len(share) or None
    where = f"processors {spans(cpus)}" if cpus else ""
    gpu = gpus[at % len(gpus)] if gpus else None
    environment = {}
    if gpu is not None:
        where = gpu.name + (f", {where}" if where else "")
        if gpu.visible is not None:
            environment[VISIBLE] = gpu.visible
    return EnginePlacement(
        name=f"engine {at + 1}",
        where=where,
        place=Placement(cpus, environment),
        threads=min(threads, most) if threads and most else most or threads,
        gpu=gpu,
    )


def spans(numbers: Sequence[int]) -> str:
    """Sorted numbers as Linux writes them: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
