"""llama.cpp looking for the likeliest tokens itself, against whole logits copied from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import Window, loaded, lockstep, random_prompts
from runtimes.machine.gpus import find_gpus
from runtimes.request import SamplingParams
from runtimes.settings import SchedulerSettings

_TOGETHER = SchedulerSettings(max_stall_s=None, prefix_cache=False)
_PARAMS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "temperature, top-k, top-p": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
}


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """Decode windows by kind of sampling, a sample a round: ``device`` and ``host``."""

    rows: int
    gpus: tuple[str, ...]
    device: dict[str, list[Window]]
    host: dict[str, list[Window]]

    def ratio(self, name: str) -> float:
        """Device over host, tokens a second, the median of the rounds."""
        pairs = zip(self.device[name], self.host[name], strict=True)
        return median([a.wall_tps / b.wall_tps for a, b in pairs])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "rows": self.rows,
            "gpus": list(self.gpus),
            "sampling": {
                name: {
                    "device_tps": rounded([w.wall_tps for w in self.device[name]]),
                    "host_tps": rounded([w.wall_tps for w in self.host[name]]),
                    "ratio": round(self.ratio(name), 4),
                }
                for name in self.device
            },
        }

    def lines(self) -> list[str]:
        """A line for each kind of sampling."""
        where = ", ".join(self.gpus) or "the processor: there is no GPU"
        return [
            f"tokens chosen by llama.cpp on {where}, against whole logits, {self.rows} rows:",
            *(
                f"  {name:26s} {median([w.wall_tps for w in self.device[name]]):.1f} : "
                f"{median([w.wall_tps for w in self.host[name]]):.1f} tok/s, "
                f"ratio {self.ratio(name):.3f}"
                for name in self.device
            ),
        ]


def device(path: Path, options: BenchOptions) -> DeviceResult:
    """Rows in lockstep, in turn on an engine of either kind. Raises as ``Engine.load``."""
    settings = options.settings(options.prompt_tokens + options.decode_tokens + 1)
    windows: dict[bool, dict[str, list[Window]]] = {
        chosen: {name: [] for name in _PARAMS} for chosen in (False, True)
    }
    for seed in range(options.repeats):
        for chosen in (False, True) if seed % 2 else (True, False):
            with loaded(path, replace(settings, device_sampling=chosen), _TOGETHER) as engine:
                prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
                for name, params in _PARAMS.items():
                    window = lockstep(engine, prompts, options.decode_tokens, params)
                    windows[chosen][name].append(window)
    gpus = tuple(gpu.name for gpu in find_gpus())
    return DeviceResult(options.rows, gpus, windows[True], windows[False])
