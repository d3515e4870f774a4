"""How long a step of a file takes here, by the types of its tensors."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from quantize.allocate.solve import TypeChoice, Types, TypeTable, Unit, size
from quantize.children import counted, run_child
from quantize.disk import sha256_text, write_atomically
from quantize.progress import Reporter
from runtimes.machine.cpu import available_cores, cpu_identity
from runtimes.machine.installed import versions
from runtimes.paths import cache_dir
from runtimes.planner.measure import Workload, measure_depths

_METHOD = 2  # raised when another time would be measured

Shape = tuple[int, int]  # the length of a row, and rows
# Of a type, a shape, the rows of inputs and the bytes of a model: a block in which as many products
# as such a model has, each with weights of its own, are computed by a function; and how many.
Products = Callable[
    [str, Shape, int, int], AbstractContextManager[tuple[Callable[[], object], int]]
]
_MOST_BYTES = 96_000_000  # of weights: more than any cache holds, of a model that is larger
_LEAST_S = 0.1  # that a product is timed for
_LAPS = 5


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the products of a step, by type and shape, and what the step takes beside them."""

    products: Mapping[tuple[str, Shape], float]
    rest: float
    used: float  # the share of a mixture's experts that a token goes through
    lookup: str  # the table of which a step takes single rows; "" where it is the output, too

    def of(self, unit: Unit, choice: TypeChoice) -> float:
        """Seconds of one tensor in that type."""
        if unit.name == self.lookup:
            return 0.0
        count = unit.matrices * self.used if unit.matrices > 1 else 1.0
        return count * self.products[choice.kind, (unit.width, unit.rows)]

    def step(self, table: TypeTable, kinds: Types) -> float:
        """Seconds of a step of the file with these types by tensor."""
        return self.rest + sum(self.of(u, u.choice(kinds[u.name])) for u in table.units)


@dataclass(frozen=True, slots=True)
class Timed:
    """A format's part in it: ``products`` as the program ``tool`` computes them in a child process,
    and the file that ``reference`` makes, whose types are ``types``."""

    tool: str
    products: Products
    reference: Callable[[], Path]
    types: Types
    used: float = 1.0  # as `StepTimes` has it


def step_times(
    table: TypeTable,
    rows: int,
    timed: Timed,
    work: Path,
    progress: Reporter,
) -> StepTimes:
    """Measured on this machine, or taken from the cache: the products, and a step of the reference,
    which says what is not in them."""
    model_bytes = int(table.least(size))
    cases = sorted({(c.kind, (u.width, u.rows)) for u in table.units for c in u.choices})
    inputs = [_METHOD, cases, rows, model_bytes, cpu_identity(), available_cores()]
    key = sha256_text(json.dumps([*inputs, versions([timed.tool])]))
    kept = cache_dir() / "kernels" / f"{key[:32]}.json"
    try:
        found = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        path = timed.reference()
        with progress.stage("timing matrix products on this machine"):
            # Not in one process: threads that products leave behind make a step take twice as long.
            step = run_child(partial(_step, path, rows), "timing a step", work, progress)
            call = partial(_seconds, timed.products, cases, rows, min(model_bytes, _MOST_BYTES))
            found = {"step": step, "products": run_child(call, "timing", work, progress)}
        write_atomically(kept, json.dumps(found))
    seconds = {(kind, (width, height)): s for kind, width, height, s in found["products"]}
    names = {unit.name for unit in table.units}
    lookup = "token_embd.weight" if "output.weight" in names else ""
    times = StepTimes(seconds, 0.0, timed.used, lookup)
    return replace(times, rest=max(found["step"] - times.step(table, timed.types), 0.0))


def _seconds(
    products: Products, cases: Sequence[tuple[str, Shape]], rows: int, model_bytes: int
) -> list[list[object]]:
    """Runs in a child process: of each case its type, shape, and seconds of a product. How much of
    ``model_bytes`` the caches hold decides."""
    found: list[list[object]] = []
    for kind, shape in counted(cases, "kernels"):
        with products(kind, shape, rows, model_bytes) as (compute, count):
            laps: list[float] = []
            while len(laps) < _LAPS or sum(laps) < _LEAST_S:
                began = time.perf_counter()
                compute()
                laps.append(time.perf_counter() - began)
        found.append([kind, *shape, min(laps) / count])
    return found


def _step(path: Path, rows: int) -> float:
    """Runs in a child process."""
    (figures,) = measure_depths(path, Workload(rows=(rows,), sample_s=1.0), repeats=3).values()
    return rows / figures.decode_tps[rows]
