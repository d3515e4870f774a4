"""The benchmarks by name: what each compares, and which files it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.bench.adapters import adapters
from app.bench.batchjob import batch_job
from app.bench.churn import churn
from app.bench.constrained import constrained
from app.bench.device import device
from app.bench.genai import genai
from app.bench.harness import BenchOptions, Result
from app.bench.jobs import prefix, reproducible, strategies
from app.bench.memory import memory
from app.bench.native import native
from app.bench.plan import plan
from app.bench.sampling import sampling
from app.bench.server import server
from app.bench.speculation import speculation
from app.bench.tui import tui
from app.bench.worker import worker_overhead


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``run`` measures one file, or the ``folder`` of several."""

    run: Callable[[Path, BenchOptions], Result]
    runtime: str | None = None  # the only one that it is for
    folder: bool = False


BENCHMARKS: dict[str, Benchmark] = {
    "native": Benchmark(native, "llamacpp"),
    "churn": Benchmark(churn),
    "server": Benchmark(server, "llamacpp"),
    "genai": Benchmark(genai, "onnx"),
    "prefix": Benchmark(prefix),
    "strategies": Benchmark(strategies),
    "reproducible": Benchmark(reproducible),
    "sampling": Benchmark(sampling),
    "device": Benchmark(device, "llamacpp"),
    "constrained": Benchmark(constrained),
    "speculation": Benchmark(speculation),
    "adapters": Benchmark(adapters),
    "batch": Benchmark(batch_job),
    "worker": Benchmark(worker_overhead),
    "memory": Benchmark(memory),
    "plan": Benchmark(plan, folder=True),
    "tui": Benchmark(tui),
}
