"""`ingot bench --sweep`: one row at a time against many at once, over files, types of the cache,
lengths and numbers of rows, beside other programs on the same work in the same run.

Every measurement is written to the disk as it is made, so that a sweep that was ended goes on.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app.bench.options import BenchOptions
from app.bench.peers import SweepSide, Times, Work, sides
from app.figures import duration, rate
from app.sweeps import OURS, PROBE, Sweep, SweepCell, SweepResult, is_probe, keep, told
from quantize.fromjson import GARBLED, from_json
from runtimes.errors import IngotError, RequestError
from runtimes.machine.hardware import detect, memory_bandwidth, memory_now
from runtimes.models.memory import estimate, gib
from runtimes.models.modelfile import ModelFile, fingerprint
from runtimes.models.registry import backend_of, read_model, tokenizer_of
from runtimes.paths import cache_dir
from runtimes.settings import RunnerSettings

ROWS = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = ((16, 128),)  # tokens of a prompt and of its answer: decode is what batches gain in
_ENOUGH_S = 4.0  # what took so long in all is not timed again
_KEPT_S = 86400.0  # a sweep that was ended goes on for so long


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything that a sweep measures, in its order."""

    models: dict[str, ModelFile]
    vocabularies: dict[str, int]  # ids that a file's graph and its tokenizer both have
    sides: dict[str, SweepSide]
    cells: tuple[SweepCell, ...]
    options: BenchOptions

    @property
    def key(self) -> str:
        """A name for the same work on the same files."""
        files = [fingerprint(model) for model in self.models.values()]
        work = [files, self.options.cores, self.options.repeats, list(map(asdict, self.cells))]
        return hashlib.sha256(json.dumps(work).encode()).hexdigest()[:16]

    def settings(self, cell: SweepCell) -> RunnerSettings:
        """A slot for each row, that just holds it."""
        return _settings(cell, self.options)


def _settings(cell: SweepCell, options: BenchOptions) -> RunnerSettings:
    asked = options.settings(cell.prompt + cell.answer + 1, rows=cell.rows)
    return replace(asked, kv_type=cell.kv_type)


def plan_sweep(files: Sequence[Path], options: BenchOptions) -> tuple[SweepPlan, list[str]]:
    """All cells that the memory has room for, and lines that say which are left out.

    Raises RequestError for sides that are not here, and where nothing is left.
    """
    models = {path.name: read_model(path) for path in files}
    taking = {side.name: side for side in sides(options.against or (), options)}
    cells: list[SweepCell] = []
    left_out: list[str] = []
    for prompt, answer in options.lengths or LENGTHS:
        for name, model in models.items():
            own = [one for one in taking.values() if one.runtime in (None, model.runtime)]
            if PROBE[0] < model.context_length:
                cells.append(SweepCell(name, "f16", *PROBE, 1, OURS))
            for kind in options.kv_types_of(model.runtime):
                for rows in options.sizes or ROWS:
                    cell = SweepCell(name, kind, prompt, answer, rows, OURS)
                    if problem := _no_room(model, cell, options):
                        left_out.append(problem)
                        break  # and none for more of them
                    # A side with one row at a time is as fast with many, which wait.
                    can = [one for one in own if rows == 1 or not one.one_by_one]
                    turn = can[:: -1 if rows.bit_length() % 2 else 1]
                    cells += [replace(cell, side=one.name) for one in turn]
    if all(map(is_probe, cells)):
        raise RequestError("; ".join(left_out) or "there is nothing to measure")
    vocabularies = {
        name: min(tokenizer_of(one).vocab_size, one.vocab_size) for name, one in models.items()
    }
    return SweepPlan(models, vocabularies, taking, tuple(dict.fromkeys(cells)), options), left_out


def _no_room(model: ModelFile, cell: SweepCell, options: BenchOptions) -> str | None:
    """Why a cell and those with more rows are left out."""
    if cell.prompt + cell.answer >= model.context_length:
        return f"left out: {told(cell)}; its context is {model.context_length:,}"
    need, available = estimate(model, _settings(cell, options)).total, memory_now()[1]
    if need > available:
        return f"left out: {told(cell)} and more; {gib(need)} are needed, {gib(available)} free"
    return None


def run_sweep(plan: SweepPlan, tell: Callable[[str], None]) -> Sweep:
    """Measure every cell that an earlier run of the same plan has not measured within a day.

    Where a side other than Ingot fails, its cells say why. Raises IngotError when Ingot does, or
    when it is ended; OSError when the disk is full.
    """
    path = cache_dir() / "sweeps" / f"{plan.key}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = _begun(path)
    if done:
        tell(f"going on with the sweep that was begun: {len(done)} of {len(plan.cells)} are there")
    begun, spent, size = time.monotonic(), 0.0, 0.0
    left = sum(cell.size for cell in plan.cells if cell not in done)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(map(_line, done.values()))
        for number, cell in enumerate(plan.cells, start=1):
            if cell in done:
                continue
            failed = [
                one for one in done.values() if one.problem and _alike(one.cell) == _alike(cell)
            ]
            found = replace(failed[0], cell=cell) if failed else _measure(plan, cell)
            done[cell] = found
            file.write(_line(found))
            file.flush()
            left, size, spent = left - cell.size, size + cell.size, time.monotonic() - begun
            rest = f", {duration(spent * left / size)} left" if left > 0.5 else ""
            tell(f"[{number}/{len(plan.cells)}] {told(cell)}: {_outcome(found)}{rest}")
    hardware = detect()
    sweep = Sweep(
        hardware.cpu,
        plan.options.cores,
        memory_bandwidth(plan.options.cores),
        tuple(done[cell] for cell in plan.cells),
    )
    keep(sweep)
    path.unlink()
    return sweep


def _line(found: SweepResult) -> str:
    return json.dumps(asdict(found)) + "\n"


def _alike(cell: SweepCell) -> tuple[str, str]:
    return cell.file, cell.side


def _outcome(found: SweepResult) -> str:
    if found.problem:
        return found.problem
    return rate(found.prefill_tps if is_probe(found.cell) and found.prefill_tps else found.tps)


def _begun(path: Path) -> dict[SweepCell, SweepResult]:
    """Cells in the file of a sweep that was ended, but for those that were cut off or failed."""
    done: dict[SweepCell, SweepResult] = {}
    with suppress(OSError, *GARBLED):
        if time.time() - path.stat().st_mtime > _KEPT_S:
            path.unlink()
            return done
        for line in path.read_text(encoding="utf-8").splitlines():
            one = from_json(SweepResult, json.loads(line))
            if not one.problem:
                done[one.cell] = one
    return done


def _measure(plan: SweepPlan, cell: SweepCell) -> SweepResult:
    model, side = plan.models[cell.file], plan.sides[cell.side]
    settings = plan.settings(cell)
    size = plan.vocabularies[cell.file]
    work = Work(model.path, size, cell.prompt, cell.answer, settings)
    runs: list[Times] = []
    try:
        with side.open(work) as opened:
            # The first of short runs warms up; where one takes long, it is no part of it.
            first = opened.run()
            if first.seconds > _ENOUGH_S:
                runs = [first]
            while len(runs) < plan.options.repeats and sum(one.seconds for one in runs) < _ENOUGH_S:
                runs.append(opened.run())
            memory = opened.memory()
    except IngotError as error:
        if cell.side == OURS:
            raise
        return SweepResult(cell, problem=str(error).splitlines()[0])
    return _figures(model, cell, settings, runs, memory)


def _figures(
    model: ModelFile,
    cell: SweepCell,
    settings: RunnerSettings,
    runs: Sequence[Times],
    memory: int | None,
) -> SweepResult:
    seconds = statistics.median(one.seconds for one in runs)
    middle = min(runs, key=lambda one: abs(one.seconds - seconds))
    prefill = middle.prefill_s
    found = SweepResult(
        cell,
        tuple(one.seconds for one in runs),
        cell.rows * cell.answer / seconds,
        middle.ttft_s,
        middle.tpot_s,
        cell.rows * cell.prompt / prefill if prefill else None,
        memory,
    )
    cost = backend_of(model).step_cost(model)
    if cost is None or not prefill:
        return found
    if is_probe(cell):
        return replace(found, operations_per_s=(cell.prompt * cost.layers + cost.output) / prefill)
    steps = cell.answer - 1
    if not middle.decode_s or not steps:
        return found
    context = settings.context or model.context_length
    filled = (cell.prompt + cell.answer / 2) / context  # of the slots, at a step in the middle
    read = cost.nbytes + estimate(model, settings).kv * filled
    made = cell.rows * (cost.layers + cost.output)
    return replace(
        found,
        bytes_per_s=steps * read / middle.decode_s,
        operations_per_s=steps * made / middle.decode_s,
    )
