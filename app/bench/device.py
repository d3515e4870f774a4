"""The likeliest tokens looked for by the runtime, against whole logits copied from it."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from app.bench.harness import BenchOptions, BenchResult, in_turn
from app.bench.work import TOGETHER, Window, loaded, lockstep_rows, wall_tps
from runtimes.machine.gpus import find_gpus
from runtimes.request import SamplingParams

_PARAMS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "temperature, top-k, top-p": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
}


def device(path: Path, options: BenchOptions) -> BenchResult:
    """Rows in lockstep, in turn on an engine of either kind. Raises as ``Engine.load``."""

    def side(on_device: bool, seed: int) -> dict[str, Window]:
        settings = replace(options.settings(), device_sampling=on_device)
        with loaded(path, settings, TOGETHER) as engine:
            return {
                name: lockstep_rows(engine, options, seed, params)
                for name, params in _PARAMS.items()
            }

    taken = in_turn({kind: partial(side, kind) for kind in (True, False)}, options.repeats)
    gpus = [gpu.name for gpu in find_gpus()]
    where = ", ".join(gpus) or "the processor: there is no GPU"
    lines = [f"likeliest tokens found on {where}, against whole logits, {options.rows} rows:"]
    figures = {}
    for name in _PARAMS:
        theirs, ours = (wall_tps(one[name] for one in taken[kind]) for kind in (True, False))
        ratio = theirs / ours
        figures[name] = {"device_tps": theirs, "host_tps": ours, "ratio": ratio.median}
        lines.append(f"  {name:26s} {theirs:.1f} : {ours:.1f} tok/s, ratio {ratio:.3f}")
    return BenchResult({"rows": options.rows, "gpus": gpus, "sampling": figures}, lines)
