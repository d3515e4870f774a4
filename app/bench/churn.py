"""Requests that arrive and leave at random against rows in lockstep, on one engine.

Both decode the same number of tokens. A finished request is followed by none, one or two new ones,
so that now a slot stays empty and now a few wait; prompts and answers are half to one and a half
times as long as in lockstep. Two rates count: decode tokens over the time of decode steps, which
shows what holes and changing rows cost; and over all the time, prefill included. Both prefill
about one prompt for every row: in lockstep before decoding, otherwise in between.

Random arrivals run twice: with prompts going in at once, as batch jobs and the native tools do, and
with prefill bounded so that no running row waits long for its next token, the default elsewhere.
Where prefill is slow, the bound keeps slots from filling, and steps with few rows are dear.
"""

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.frame import LAYOUTS, BenchResult, compared, in_turn, samples
from app.bench.options import BenchOptions
from app.bench.work import (
    TOGETHER,
    Window,
    about,
    between,
    finished,
    first_tokens,
    greedy,
    loaded,
    random_prompts,
    run,
    step_tps,
    wait_for,
    wall_tps,
)
from runtimes.api import EngineApi
from runtimes.models.registry import backend_of, read_model
from runtimes.request import Request
from runtimes.settings import RunnerSettings, SchedulerSettings

_MOST_WAITING = 4
_FEWEST_MISSING = 1  # of the slots, at least all but this many have a request
_LOCKSTEP = "lockstep"


def churn(path: Path, options: BenchOptions) -> BenchResult:
    """Lockstep and churn in turn on each cache layout there is: churn over lockstep, of the steps
    and end to end."""
    need = 3 * (options.prompt_tokens + options.decode_tokens) // 2 + 2
    lines: list[str] = []
    layouts: dict[str, dict[str, Any]] = {}
    for layout, unified in LAYOUTS.items():
        if unified and "unified_kv" not in backend_of(read_model(path)).knows:
            continue
        settings = options.settings(need, unified=unified)
        bounded = SchedulerSettings(prefix_cache=False)
        sides = {
            # In lockstep only if every prompt is in before the first row decodes.
            _LOCKSTEP: partial(_lockstep_job, path, settings, options),
            "at once": partial(_random_job, path, settings, TOGETHER, options),
            "bounded": partial(_random_job, path, settings, bounded, options),
        }
        taken = in_turn(sides, options.repeats)
        layouts[layout] = {
            side: {"decode_tokens": [window.tokens for window in windows]}
            for side, windows in taken.items()
        }
        for kind, rate in (("of_steps", step_tps), ("end_to_end", wall_tps)):
            tps = samples(taken, rate)
            title = f"{layout}, {options.rows} slots: decode tok/s {kind.replace('_', ' ')}"
            lines += compared(title, tps)
            for side, found in tps.items():
                ratio = (found / tps[_LOCKSTEP]).median
                layouts[layout][side] |= {f"decode_tps_{kind}": found, f"ratio_{kind}": ratio}
    return BenchResult({"layouts": layouts}, lines)


def _lockstep_job(path: Path, settings: RunnerSettings, options: BenchOptions, seed: int) -> Window:
    """Window from the submission to the end of rows that are all alike."""
    with loaded(path, settings, TOGETHER) as engine:
        prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
        before, begin = engine.stats(), time.perf_counter()
        run(engine, prompts, [greedy(options.decode_tokens + 1)] * options.rows)
        return between(before, begin, engine.stats(), time.perf_counter())


def _random_job(
    path: Path,
    settings: RunnerSettings,
    scheduling: SchedulerSettings,
    options: BenchOptions,
    seed: int,
) -> Window:
    """Window from the first token of the first rows until as many tokens as in lockstep are
    decoded."""
    dice, rows = random.Random(seed), options.rows
    with loaded(path, settings, scheduling) as engine:
        requests = iter(_requests(engine, options, dice))
        begun = first_tokens(engine.stats()) + rows
        running = [engine.submit(next(requests)) for _ in range(rows)]

        def feed(reached: bool) -> bool:
            """Let none, one or two requests follow each that has ended; return ``reached``."""
            for stream in [stream for stream in running if stream.done]:
                finished([stream])
                running.remove(stream)
                fewest, most = rows - _FEWEST_MISSING, rows + _MOST_WAITING
                count = min(max(dice.randrange(3), fewest - len(running)), most - len(running))
                running.extend(engine.submit(next(requests)) for _ in range(count))
            return reached

        try:
            before, begin = wait_for(engine, lambda stats: feed(first_tokens(stats) >= begun))
            enough = before.decode_tokens + rows * options.decode_tokens
            after, end = wait_for(engine, lambda stats: feed(stats.decode_tokens >= enough))
        finally:
            for stream in running:
                stream.cancel()
            for stream in running:
                stream.result()
    return between(before, begin, after, end)


def _requests(engine: EngineApi, options: BenchOptions, dice: random.Random) -> list[Request]:
    """Requests, more than the window uses. The first rows are met at any point of their answers."""
    count = 6 * options.rows
    lengths = [about(options.prompt_tokens, dice) for _ in range(count)]
    prompts = random_prompts(engine, lengths, dice.randrange(2**32))
    answers = [dice.randint(1, 3 * options.decode_tokens // 2) for _ in range(options.rows)]
    answers += [about(options.decode_tokens, dice) for _ in range(count - options.rows)]
    return [
        Request(prompt, greedy(answer + 1)) for prompt, answer in zip(prompts, answers, strict=True)
    ]
