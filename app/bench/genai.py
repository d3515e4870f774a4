"""An ONNX folder: one row against onnxruntime-genai, the engine's own share of a step, and memory.

All sides decode the same prompt for as many tokens, round by round in turn; onnxruntime-genai does
so in processes of its own, once with as many threads as the engine and once as it loads a folder
when it is not told how many.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from app.bench.harness import BenchOptions, BenchResult, in_turn
from app.bench.work import (
    TOGETHER,
    Window,
    host_shares,
    loaded,
    lockstep_rows,
    native_loop,
    random_prompts,
    wall_tps,
)
from runtimes.api import EngineApi

_LIBRARY = "onnxruntime-genai"
_SETTLED = 0.1  # of the steps, until buffers have grown to what the work needs


def genai(path: Path, options: BenchOptions) -> BenchResult:
    """Raises IngotError when onnxruntime-genai is not installed or cannot load the folder."""
    with (
        native_loop(_LIBRARY, path, options.cores) as as_many_threads,
        native_loop(_LIBRARY, path, 0) as untold,
        loaded(path, options.settings(rows=1), TOGETHER) as engine,
    ):

        def theirs(loop: Callable[..., float], seed: int) -> Window:
            prompts = random_prompts(engine, [options.prompt_tokens], seed)
            return Window.timed(options.decode_tokens, loop(prompts, options.decode_tokens))

        sides = {
            "ours": partial(lockstep_rows, engine, options),
            "theirs": partial(theirs, as_many_threads),
            "untold": partial(theirs, untold),
        }
        one = in_turn(sides, options.repeats, warm_up=True)
    with loaded(path, options.settings(), TOGETHER) as engine:
        many = [lockstep_rows(engine, options, seed) for seed in range(options.repeats)]
        steps, growth = _growth(engine, options)
    tps, told, own_way = (wall_tps(windows) for windows in one.values())
    shares = host_shares(one["ours"])
    figures = {
        "prompt_tokens": options.prompt_tokens,
        "decode_tokens": options.decode_tokens,
        "threads": options.cores,
        "rows": options.rows,
        "decode_tps_1_row": tps,
        "decode_tps_rows": wall_tps(many),
        "onnxruntime_genai_decode_tps": told,
        "onnxruntime_genai_untold_decode_tps": own_way,
        "ratio": (tps / told).median,
        "ratio_untold": (tps / own_way).median,
        "host_share_1_row": shares,
        "host_share_rows": host_shares(many),
        "memory_steps": steps,
        "memory_growth_bytes": growth,
    }
    lines = [
        f"1 row, {options.cores} threads: {tps:.1f} tok/s, onnxruntime-genai {told:.1f}: ratio "
        f"{tps / told:.2f}; with the threads that it chooses itself {own_way:.1f}: ratio "
        f"{tps / own_way:.2f}",
        f"the engine's own share of a decode step: {shares:.2%} at 1 row, "
        f"{host_shares(many):.2%} at {options.rows} rows",
        f"resident memory over {steps:,} decode steps of {options.rows} rows: "
        f"{growth / 1e6:+.2f} MB",
    ]
    return BenchResult(figures, lines)


def _growth(engine: EngineApi, options: BenchOptions) -> tuple[int, int]:
    """Decode steps made, and the bytes by which this process grew in them."""
    process = psutil.Process()
    start, steps, seed = 0, 0, options.repeats
    while steps < options.steps or not start:
        steps += lockstep_rows(engine, options, seed).steps
        seed += 1
        if not start and steps >= _SETTLED * options.steps:
            start = process.memory_info().rss
            steps = 0
    return steps, process.memory_info().rss - start
