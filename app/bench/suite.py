"""The benchmarks by name: what each compares, and which files it is for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.bench.adapters import adapters
from app.bench.batchjob import batch_job
from app.bench.churn import churn
from app.bench.constrained import constrained
from app.bench.depth import native_at_depths, server_at_depths
from app.bench.device import device
from app.bench.genai import genai
from app.bench.harness import BenchOptions, BenchResult
from app.bench.jobs import prefix, prefix_at_depths, reproducible, strategies
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
    """``usual`` measures one file, or the ``folder`` of several."""

    usual: Callable[[Path, BenchOptions], BenchResult]
    runtime: str | None = None  # the only one that it is for
    folder: bool = False
    at_depths: Callable[[Path, BenchOptions], BenchResult] | None = None

    def run(self, path: Path, options: BenchOptions) -> BenchResult:
        """Behind the depths that ``options`` name, where it can."""
        return ((options.depths and self.at_depths) or self.usual)(path, options)


BENCHMARKS: dict[str, Benchmark] = {
    "native": Benchmark(native, "llamacpp", at_depths=native_at_depths),
    "churn": Benchmark(churn),
    "server": Benchmark(server, "llamacpp", at_depths=server_at_depths),
    "genai": Benchmark(genai, "onnx"),
    "prefix": Benchmark(prefix, at_depths=prefix_at_depths),
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
