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
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result, median, paired, rounded
from app.bench.work import (
    TOGETHER,
    Window,
    about,
    between,
    first_tokens,
    greedy,
    loaded,
    random_prompts,
    run,
    wait_for,
    wall_tps,
)
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.models.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, Request
from runtimes.settings import SchedulerSettings
from runtimes.stream import Stream

_MOST_WAITING = 4
_FEWEST_MISSING = 1  # of the slots, at least all but this many have a request

_BOUNDS = {
    "at once": TOGETHER,
    "bounded": SchedulerSettings(prefix_cache=False),
}


@dataclass(frozen=True, slots=True)
class _Samples:
    """Windows of one cache layout, one of each kind a round."""

    even: list[Window] = field(default_factory=list)
    uneven: dict[str, list[Window]] = field(default_factory=lambda: {name: [] for name in _BOUNDS})


def churn(path: Path, options: BenchOptions) -> Result:
    """Lockstep and churn in turn, ``options.repeats`` rounds, on each cache layout there is."""
    layouts = {"split": False}
    if "unified_kv" in ModelFile.read(path).backend.knows:
        layouts["unified"] = True
    need = 3 * (options.prompt_tokens + options.decode_tokens) // 2 + 2
    samples: dict[str, _Samples] = {}
    for layout, unified in layouts.items():
        samples[layout] = _Samples()
        settings = options.settings(need, unified=unified)
        for seed in range(options.repeats):
            with loaded(path, settings, _BOUNDS["at once"]) as engine:
                # In lockstep only if every prompt is in before the first row decodes.
                samples[layout].even.append(_lockstep_job(engine, options, seed))
            for bound, scheduling in _BOUNDS.items():
                with loaded(path, settings, scheduling) as engine:
                    samples[layout].uneven[bound].append(_random_job(engine, options, seed))
    return _result(options.rows, samples)


def _result(rows: int, samples: dict[str, _Samples]) -> Result:
    """Churn over lockstep, of the steps and end to end."""
    lines = [f"requests arriving and leaving at random on {rows} slots : in lockstep"]
    layouts: dict[str, dict[str, Any]] = {}
    for layout, taken in samples.items():
        even_steps, even_wall = _rates(taken.even)
        layouts[layout] = {"lockstep": _figures(taken.even)}
        for bound, windows in taken.uneven.items():
            steps, wall = _rates(windows)
            of_steps, of_wall = paired(steps, even_steps), paired(wall, even_wall)
            layouts[layout][bound] = {
                **_figures(windows),
                "ratio_of_steps": round(of_steps, 4),
                "ratio_end_to_end": round(of_wall, 4),
            }
            lines.append(
                f"  {layout}, prefill {bound}: of decode steps {of_steps:.3f} "
                f"({median(steps):.1f} : {median(even_steps):.1f} tok/s), end to end "
                f"{of_wall:.3f} ({median(wall):.1f} : {median(even_wall):.1f})"
            )
    return Result({"rows": rows, "layouts": layouts}, lines)


def _rates(windows: list[Window]) -> tuple[list[float], list[float]]:
    return [window.step_tps for window in windows], wall_tps(windows)


def _figures(windows: list[Window]) -> dict[str, list[float]]:
    steps, wall = _rates(windows)
    return {
        "prompt_tokens": [window.prompt_tokens for window in windows],
        "decode_tokens": [window.tokens for window in windows],
        "decode_tps_of_steps": rounded(steps),
        "decode_tps_end_to_end": rounded(wall),
    }


def _lockstep_job(engine: EngineApi, options: BenchOptions, seed: int) -> Window:
    """From submission to the end of rows that are all alike."""
    prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
    before, begin = engine.stats(), time.perf_counter()
    run(engine, prompts, [greedy(options.decode_tokens + 1)] * options.rows)
    return between(before, begin, engine.stats(), time.perf_counter())


def _random_job(engine: EngineApi, options: BenchOptions, seed: int) -> Window:
    """From when the first rows have begun until as many tokens as in lockstep are decoded."""
    dice = random.Random(seed)
    wanted = options.rows * options.decode_tokens
    begun = first_tokens(engine.stats()) + options.rows
    feeder = _Feeder(engine, options.rows, dice, _requests(engine, options, dice))
    feeder.start()
    try:
        before, begin = wait_for(engine, lambda stats: feeder.check(first_tokens(stats) >= begun))
        after, end = wait_for(
            engine, lambda stats: feeder.check(stats.decode_tokens - before.decode_tokens >= wanted)
        )
    finally:
        feeder.stop()
    return between(before, begin, after, end)


def _requests(engine: EngineApi, options: BenchOptions, dice: random.Random) -> list[Request]:
    """More than the window can use up. The first rows are met at any point of their answers."""
    count = 6 * options.rows
    lengths = [about(options.prompt_tokens, dice) for _ in range(count)]
    prompts = random_prompts(engine, lengths, dice.randrange(2**32))
    answers = [
        about(options.decode_tokens, dice)
        if i >= options.rows
        else dice.randint(1, 3 * options.decode_tokens // 2)
        for i in range(count)
    ]
    return [
        Request(prompt, greedy(answer + 1)) for prompt, answer in zip(prompts, answers, strict=True)
    ]


class _Feeder:
    """Submits the next requests when one ends, on the thread that ended it."""

    def __init__(
        self, engine: EngineApi, rows: int, dice: random.Random, requests: list[Request]
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._dice = dice
        self._left = iter(requests)
        self._lock = threading.Lock()
        self._running: dict[str, Stream] = {}
        self._stopped = False
        self._problem: str | None = None

    def start(self) -> None:
        """One request for every slot."""
        with self._lock:
            streams = [self._submit() for _ in range(self._rows)]
        self._watch(streams)

    def check(self, reached: bool) -> bool:
        """``reached``, unless a request has failed: then IngotError."""
        if self._problem:
            raise IngotError(f"a request of the benchmark failed: {self._problem}")
        return reached

    def stop(self) -> None:
        """Cancel what runs and wait until it has ended."""
        with self._lock:
            self._stopped = True
            running = list(self._running.values())
        for stream in running:
            stream.cancel()
        for stream in running:
            stream.result()

    def _submit(self) -> Stream:
        stream = self._engine.submit(next(self._left))
        self._running[stream.id] = stream
        return stream

    def _watch(self, streams: list[Stream]) -> None:
        # Outside the lock: a stream that has ended already calls back at once.
        for stream in streams:
            stream.add_done_callback(self._ended)

    def _ended(self, completion: Completion) -> None:
        with self._lock:
            self._running.pop(completion.id, None)
            if self._stopped:
                return
            if completion.finish_reason is not FinishReason.LENGTH:
                self._problem = completion.error or str(completion.finish_reason)
                return
            have = len(self._running)
            fewest, most = self._rows - _FEWEST_MISSING - have, self._rows + _MOST_WAITING - have
            arrivals = min(max(self._dice.randrange(3), fewest), most)
            streams = [self._submit() for _ in range(arrivals)]
        self._watch(streams)
