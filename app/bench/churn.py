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

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import (
    Window,
    between,
    first_tokens,
    greedy,
    loaded,
    random_prompts,
    run,
    wait_for,
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
    "at once": SchedulerSettings(max_stall_s=None, prefix_cache=False),
    "bounded": SchedulerSettings(prefix_cache=False),
}


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """Windows by cache layout, one of each kind a round; ``uneven`` by the bound of prefill too."""

    rows: int
    even: dict[str, list[Window]]
    uneven: dict[str, dict[str, list[Window]]]

    def _ratio(self, layout: str, bound: str, figure: str) -> float:
        """Churn over lockstep, the median of the rounds."""
        pairs = zip(self.uneven[layout][bound], self.even[layout], strict=True)
        return median([getattr(uneven, figure) / getattr(even, figure) for uneven, even in pairs])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "rows": self.rows,
            "layouts": {
                layout: {
                    "lockstep": _figures(self.even[layout]),
                    **{
                        bound: {
                            **_figures(windows),
                            "ratio_of_steps": round(self._ratio(layout, bound, "step_tps"), 4),
                            "ratio_end_to_end": round(self._ratio(layout, bound, "wall_tps"), 4),
                        }
                        for bound, windows in bounds.items()
                    },
                }
                for layout, bounds in self.uneven.items()
            },
        }

    def lines(self) -> list[str]:
        """A line for each layout and bound."""
        text = [f"requests arriving and leaving at random on {self.rows} slots : in lockstep"]
        for layout, bounds in self.uneven.items():
            even = self.even[layout]
            for bound, windows in bounds.items():
                text.append(
                    f"  {layout}, prefill {bound}: of decode steps "
                    f"{self._ratio(layout, bound, 'step_tps'):.3f} "
                    f"({median([w.step_tps for w in windows]):.1f} : "
                    f"{median([w.step_tps for w in even]):.1f} tok/s), end to end "
                    f"{self._ratio(layout, bound, 'wall_tps'):.3f} "
                    f"({median([w.wall_tps for w in windows]):.1f} : "
                    f"{median([w.wall_tps for w in even]):.1f})"
                )
        return text


def _figures(windows: list[Window]) -> dict[str, list[float]]:
    return {
        "prompt_tokens": [window.prompt_tokens for window in windows],
        "decode_tokens": [window.tokens for window in windows],
        "decode_tps_of_steps": rounded([window.step_tps for window in windows]),
        "decode_tps_end_to_end": rounded([window.wall_tps for window in windows]),
    }


def churn(path: Path, options: BenchOptions) -> ChurnResult:
    """Lockstep and churn in turn, ``options.repeats`` rounds, on each cache layout there is."""
    layouts = {"split": False}
    if "unified_kv" in ModelFile.read(path).backend.knows:
        layouts["unified"] = True
    need = 3 * (options.prompt_tokens + options.decode_tokens) // 2 + 2
    even: dict[str, list[Window]] = {}
    uneven: dict[str, dict[str, list[Window]]] = {}
    for layout, unified in layouts.items():
        settings = options.settings(need, unified=unified)
        for seed in range(options.repeats):
            with loaded(path, settings, _BOUNDS["at once"]) as engine:
                # In lockstep only if every prompt is in before the first row decodes.
                even.setdefault(layout, []).append(_lockstep_job(engine, options, seed))
            for bound, scheduling in _BOUNDS.items():
                with loaded(path, settings, scheduling) as engine:
                    window = _random_job(engine, options, seed)
                uneven.setdefault(layout, {}).setdefault(bound, []).append(window)
    return ChurnResult(options.rows, even, uneven)


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
    lengths = [_about(options.prompt_tokens, dice) for _ in range(count)]
    prompts = random_prompts(engine, lengths, dice.randrange(2**32))
    answers = [
        _about(options.decode_tokens, dice)
        if i >= options.rows
        else dice.randint(1, 3 * options.decode_tokens // 2)
        for i in range(count)
    ]
    return [
        Request(prompt, greedy(answer + 1)) for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _about(mean: int, dice: random.Random) -> int:
    return dice.randint(max(1, mean // 2), max(1, 3 * mean // 2))


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
