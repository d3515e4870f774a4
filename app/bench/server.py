"""The same prompts to the same end: the engine, alone and behind `ingot serve`, against
`llama-server` of the same llama.cpp.

The engine runs in a worker process, as for every front end.
Everybody starts afresh each round, so that no round finds the prompts of the one before in a cache.
Servers get token ids and answer over the loopback interface, two requests a slot at a time.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.harness import (
    DEFAULT,
    LAYOUTS,
    BenchOptions,
    BenchResult,
    Samples,
    against,
    in_turn,
    require_tool,
)
from app.bench.llama_server import IngotServer, LlamaServer
from app.bench.prompts import bench_prompts
from app.bench.work import greedy, loaded, timed_run
from runtimes.settings import RunnerSettings, SchedulerSettings

_SERVER, _SERVE = LlamaServer.name, IngotServer.name
# A batch: nobody watches a row, so that prompts may go in without bounds.
_UNBOUNDED = SchedulerSettings(max_stall_s=None)


def server(path: Path, options: BenchOptions) -> BenchResult:
    """Every side in turn: generated tok/s end to end."""
    program = require_tool(options.llama_server, "--llama-server", "llama-server")
    prompts = bench_prompts(path, options)
    need = max(map(len, prompts)) + options.decode_tokens + 1
    split = options.settings(need)
    said: dict[str, Any] = {}  # of its slots

    def ours(settings: RunnerSettings, _: int) -> float:
        params = [greedy(options.decode_tokens)] * len(prompts)
        with loaded(path, settings, _UNBOUNDED, worker=True) as engine:
            return timed_run(engine, prompts, params)[0]

    def theirs(_: int) -> float:
        with LlamaServer(program, path, split) as native:
            said.update(native.slots())
            return native.seconds(prompts, options.decode_tokens)

    sides: dict[str, Callable[[int], float]] = {
        name: partial(ours, options.settings(need, unified=kvu)) for name, kvu in LAYOUTS.items()
    }

    def served(_: int) -> float:
        with IngotServer(path, split) as own:
            return own.seconds(prompts, options.decode_tokens)

    seconds = in_turn({**sides, _SERVE: served, _SERVER: theirs}, options.repeats)
    made = options.decode_tokens * len(prompts)
    tps = {side: Samples(made / took for took in samples) for side, samples in seconds.items()}
    ratios, verdict = against({name: tps[name] for name in LAYOUTS}, {_SERVER: tps[_SERVER]})
    over_http = {
        "serve_to_llama_server": (tps[_SERVE] / tps[_SERVER]).median,
        "serve_to_engine": (tps[_SERVE] / tps[DEFAULT]).median,
    }
    prompt_tokens = sum(map(len, prompts))
    figures = {
        "slots": options.rows,
        "context": split.context,
        "threads": split.threads,
        "requests": len(prompts),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": made,
        "clients": 2 * options.rows,
        "llama_server_slots": said,
        "ingot_seconds": {name: seconds[name] for name in LAYOUTS},
        "ingot_serve_seconds": seconds[_SERVE],
        "llama_server_seconds": seconds[_SERVER],
        **over_http,
        **ratios,
    }
    lines = [
        f"{len(prompts)} prompts of {prompt_tokens} tokens in all, {made} tokens "
        f"generated, {options.rows} slots of {split.context}: seconds end to end"
    ]
    for name, taken in seconds.items():
        side = {_SERVER: f"{_SERVER} (it says: {said})", _SERVE: _SERVE}.get(name, f"ingot, {name}")
        samples, speed = Samples(taken), f"{tps[name]:.1f} generated tok/s"
        lines.append(f"  {side}: {samples:.2f} s, {speed} ({samples.spread('.2f')} s)")
    lines.append(
        f"  {_SERVE} has {over_http['serve_to_llama_server']:.3f} of {_SERVER}'s tok/s, and"
        f" {over_http['serve_to_engine']:.3f} of the engine's alone"
    )
    return BenchResult(figures, [*lines, verdict])
