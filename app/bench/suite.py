"""Benchmarks by name: what each compares, and which files it is for. A model of a realistic shape
with random weights, built once and kept in the cache folder, is one that all can take."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.bench.estimates import memory, plan
from app.bench.frame import BenchResult
from app.bench.itself import adapters, churn, constrained, sampling, speculation, worker_overhead
from app.bench.jobs import batch_job, prefix, prefix_at_depths, reproducible, strategies
from app.bench.options import BenchOptions
from app.bench.others import genai, native, native_at_depths, server, server_at_depths
from app.bench.tui import tui
from quantize.manifest import NAME, load_manifest
from quantize.source.synthetic import SHAPES
from runtimes import own
from runtimes.errors import IngotError, RequestError
from runtimes.machine import processes
from runtimes.paths import cache_dir

_RECIPES = ("q4_0", "q8_0", "onnx-int4", "onnx-int4-w8a8")


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
    "constrained": Benchmark(constrained),
    "speculation": Benchmark(speculation),
    "adapters": Benchmark(adapters),
    "batch": Benchmark(batch_job),
    "worker": Benchmark(worker_overhead),
    "memory": Benchmark(memory),
    "plan": Benchmark(plan, folder=True),
    "tui": Benchmark(tui),
}


def random_model(shape: str) -> Path:
    """The folder with the built files of the random model ``shape``, made if it is not there. The
    weights mean nothing; the speed of a forward pass does not depend on their values.

    Raises RequestError for a shape that there is not, such as a path, whose folder would be removed
    below; IngotError when the build fails: `quantize` has then said why on stderr.
    """
    if shape not in SHAPES:
        raise RequestError(f"--random: there is no shape {shape}; there are: {', '.join(SHAPES)}")
    folder = cache_dir() / "bench" / shape
    built = folder.with_name(f"{shape}-built")
    have = {entry.recipe for entry in load_manifest(built).files} if (built / NAME).exists() else ()
    missing = [name for name in _RECIPES if name not in have]
    if not missing:
        return built
    # A process of its own each: torch must not stay in the one that takes times.
    program = (
        f"import sys, pathlib; from {own('quantize.source.synthetic')} import make_random_model; "
        "make_random_model(pathlib.Path(sys.argv[1]), sys.argv[2])"
    )
    shutil.rmtree(folder, ignore_errors=True)
    _run("-c", program, folder, shape, what=f"making the model {shape}")
    options = [option for name in missing for option in ("--recipe", name)]
    command = ("-m", "quantize", folder, "--out", built, "--no-measure", *options)
    _run(*command, what=f"building the files of {shape}")
    shutil.rmtree(folder)
    return built


def _run(*arguments: object, what: str) -> None:
    done = processes.run(*arguments, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise IngotError(f"{what} failed with exit code {done.returncode}")
