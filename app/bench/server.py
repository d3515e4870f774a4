"""The same prompts to the same end: the engine against `llama-server` of the same llama.cpp.

The engine runs in a worker process, as for every front end.
Everybody starts afresh each round, so that no round finds the prompts of the one before in a cache.
The server gets token ids and answers over the loopback interface, two requests a slot at a time.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.bench.llama_server import LlamaServer
from app.bench.options import BenchOptions, Result, in_turn, median, rounded
from app.bench.prompts import bench_prompts
from app.bench.tools import require_tool
from app.bench.work import greedy, loaded, timed_run
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings, SchedulerSettings

_LAYOUTS = {"split": False, "unified": True}
_SERVER = "llama-server"
_WARM_UP = [[7] * 8]


def server(path: Path, options: BenchOptions) -> Result:
    """Every side in turn, ``options.repeats`` rounds."""
    program = require_tool(options.llama_server, "--llama-server", "llama-server")
    prompts = bench_prompts(path, options)
    tokens = options.decode_tokens
    need = max(map(len, prompts)) + tokens + 1
    settings = {name: options.settings(need, unified=kvu) for name, kvu in _LAYOUTS.items()}
    clients = 2 * options.rows
    seconds: dict[str, list[float]] = {name: [] for name in (*_LAYOUTS, _SERVER)}
    said: dict[str, Any] = {}  # of its slots
    for _, side in in_turn(list(seconds), options.repeats):
        if side != _SERVER:
            seconds[side].append(_our_seconds(path, settings[side], prompts, tokens))
            continue
        with LlamaServer(program, path, settings["split"]) as native:
            native.complete(_WARM_UP * options.rows, 3, options.rows)
            begin = time.perf_counter()
            made = native.complete(prompts, tokens, clients)
            seconds[side].append(time.perf_counter() - begin)
            said = native.slots()
        if made != tokens * len(prompts):
            raise IngotError(f"llama-server made {made} tokens instead of {tokens * len(prompts)}")
    sizes = {
        "slots": options.rows,
        "context": settings["split"].context,
        "threads": settings["split"].threads,
        "requests": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "completion_tokens": tokens * len(prompts),
        "clients": clients,
    }
    return _result(sizes, seconds, said)


def _result(sizes: dict[str, Any], seconds: dict[str, list[float]], said: dict[str, Any]) -> Result:
    """Their time over ours, above 1 where ours is faster: of our better layout, and of the one that
    Ingot takes unasked.
    """
    ours = {name: seconds[name] for name in _LAYOUTS}
    theirs = seconds[_SERVER]
    best = median(theirs) / min(map(median, ours.values()))
    default = median(theirs) / median(ours["split"])
    # Of each round, whose runs lie close together in time.
    rounds = [
        their / min(mine)
        for their, mine in zip(theirs, zip(*ours.values(), strict=True), strict=True)
    ]
    figures = {
        **sizes,
        "llama_server_slots": said,
        "ingot_seconds": {name: rounded(samples) for name, samples in ours.items()},
        "llama_server_seconds": rounded(theirs),
        "ratio_of_best": round(best, 4),
        "ratio_of_rounds": rounded(rounds),
        "ratio_of_default": round(default, 4),
    }
    tokens = sizes["completion_tokens"]
    lines = [
        f"{sizes['requests']} prompts of {sizes['prompt_tokens']} tokens in all, {tokens} tokens "
        f"generated, {sizes['slots']} slots of {sizes['context']}: seconds end to end"
    ]
    for name, samples in seconds.items():
        side = f"{_SERVER} (it says: {said})" if name == _SERVER else f"ingot, {name}"
        lines.append(
            f"  {side}: {median(samples):.2f} s, {tokens / median(samples):.1f} "
            f"generated tok/s ({min(samples):.2f}-{max(samples):.2f} s)"
        )
    lines.append(
        f"  theirs : better of ours = {best:.3f}; theirs : our default (split) = {default:.3f}; "
        f"of each round {', '.join(f'{ratio:.3f}' for ratio in rounds)} (above 1: ours is faster)"
    )
    return Result(figures, lines)


def _our_seconds(
    path: Path, settings: RunnerSettings, prompts: Sequence[list[int]], tokens: int
) -> float:
    # A batch: nobody watches a row, so that prompts may go in without bounds.
    with loaded(path, settings, SchedulerSettings(max_stall_s=None), worker=True) as engine:
        return timed_run(engine, prompts, [greedy(tokens)] * len(prompts))[0]
