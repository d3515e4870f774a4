"""llama.cpp looking for the likeliest tokens itself, against whole logits copied from it."""

from dataclasses import replace
from pathlib import Path

from app.bench.options import BenchOptions, Result, in_turn, median, paired, rounded
from app.bench.work import TOGETHER, loaded, lockstep, random_prompts
from runtimes.machine.gpus import find_gpus
from runtimes.request import SamplingParams

_PARAMS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "temperature, top-k, top-p": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
}


def device(path: Path, options: BenchOptions) -> Result:
    """Rows in lockstep, in turn on an engine of either kind. Raises as ``Engine.load``."""
    settings = options.settings(options.prompt_tokens + options.decode_tokens + 1)
    on_device: dict[str, list[float]] = {name: [] for name in _PARAMS}
    on_host: dict[str, list[float]] = {name: [] for name in _PARAMS}
    for seed, chosen in in_turn((True, False), options.repeats):
        with loaded(path, replace(settings, device_sampling=chosen), TOGETHER) as engine:
            prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
            for name, params in _PARAMS.items():
                window = lockstep(engine, prompts, options.decode_tokens, params)
                (on_device if chosen else on_host)[name].append(window.wall_tps)
    gpus = [gpu.name for gpu in find_gpus()]
    figures = {
        name: {
            "device_tps": rounded(on_device[name]),
            "host_tps": rounded(on_host[name]),
            "ratio": round(paired(on_device[name], on_host[name]), 4),
        }
        for name in _PARAMS
    }
    where = ", ".join(gpus) or "the processor: there is no GPU"
    lines = [f"tokens chosen by llama.cpp on {where}, against whole logits, {options.rows} rows:"]
    for name in _PARAMS:
        lines.append(
            f"  {name:26s} {median(on_device[name]):.1f} : {median(on_host[name]):.1f} tok/s, "
            f"ratio {paired(on_device[name], on_host[name]):.3f}"
        )
    return Result({"rows": options.rows, "gpus": gpus, "sampling": figures}, lines)
