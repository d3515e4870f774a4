"""The benchmarks by name: what each compares, and which files it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.batchjob import batch_job
from app.bench.churn import churn
from app.bench.constrained import constrained
from app.bench.device import device
from app.bench.genai import genai
from app.bench.memory import MemoryRow, memory_check, table
from app.bench.native import native
from app.bench.options import BenchOptions, Result
from app.bench.plan import PlanRegret, plan_regret
from app.bench.prefix import prefix
from app.bench.reproducible import reproducible
from app.bench.sampling import SamplingShare, sampling_share
from app.bench.server import server
from app.bench.strategies import strategies
from app.bench.table import aligned
from app.bench.tui import tui
from app.bench.worker import worker_overhead
from runtimes.planner.plan import WORKLOADS

_BOTH = ("llamacpp", "onnx")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``run`` measures one file of one of the ``runtimes``, or the ``folder`` that they are in."""

    run: Callable[[Path, BenchOptions], Result]
    runtimes: tuple[str, ...] = _BOTH
    folder: bool = False


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """One file at several settings."""

    rows: list[MemoryRow]

    def to_json(self) -> dict[str, Any]:
        """Every setting."""
        return {"settings": [row.to_json() for row in self.rows]}

    def lines(self) -> list[str]:
        """A table, MiB."""
        return aligned(table(self.rows), left=3)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The planner against a sweep, for each workload."""

    regrets: list[PlanRegret]

    def to_json(self) -> dict[str, Any]:
        """Every point of the sweeps."""
        return {"workloads": [regret.to_json() for regret in self.regrets]}

    def lines(self) -> list[str]:
        """A list of points for each workload, best first."""
        return [line for regret in self.regrets for line in regret.lines()]


def _plan(folder: Path, options: BenchOptions) -> PlanResult:
    return PlanResult([plan_regret(folder, w, repeats=options.repeats) for w in WORKLOADS])


def _memory(path: Path, _options: BenchOptions) -> MemoryResult:
    return MemoryResult(memory_check(path))


def _sampling(path: Path, options: BenchOptions) -> SamplingShare:
    return sampling_share(path, options.rows, options.repeats, threads=options.cores)


BENCHMARKS: dict[str, Benchmark] = {
    "native": Benchmark(native, ("llamacpp",)),
    "churn": Benchmark(churn),
    "server": Benchmark(server, ("llamacpp",)),
    "genai": Benchmark(genai, ("onnx",)),
    "prefix": Benchmark(prefix),
    "strategies": Benchmark(strategies),
    "reproducible": Benchmark(reproducible),
    "sampling": Benchmark(_sampling),
    "device": Benchmark(device, ("llamacpp",)),
    "constrained": Benchmark(constrained),
    "batch": Benchmark(batch_job),
    "worker": Benchmark(worker_overhead),
    "memory": Benchmark(_memory),
    "plan": Benchmark(_plan, folder=True),
    "tui": Benchmark(tui),
}
