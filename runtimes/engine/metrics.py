"""Token rates and latency figures of an engine."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runtimes.request import Timings

SMOOTHING = 0.8  # of the last estimate, by measurement
_RECENT_S = 10.0
_KEPT_COMPLETIONS = 1000  # that percentiles are taken over
_LEAST_S = 1e-3  # the first bin of a histogram ends here; each other one at 2**(1/2) of the last


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles over the last completions, in seconds; None before the first."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    bins: tuple[tuple[float, int], ...] = ()  # a histogram: where each bin ends, how many are in it

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles:
        """Inclusive percentiles. The bins are half an octave wide, from the first that has
        something in it to the last."""
        from statistics import quantiles

        found = sorted(values)
        if not found:
            return cls()
        cuts = quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
        return cls(cuts[49], cuts[89], cuts[98], _histogram(found))


Tokens = Counter[str]  # by the fields' names of ``EngineStats`` and ``Timings``


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``prefill_s`` and ``decode_s`` are the seconds that steps of that kind took since
    the engine started; ``*_now`` are tokens a second over the last second of wall time, ``*_10s``
    over the last ten. ``running`` is ``prefilling`` and ``decoding`` together.
    """

    slots: int
    context: int
    queued: int
    running: int
    prefilling: int
    decoding: int
    steps: int
    prompt_tokens: int  # computed; those that were cached come on top
    cached_tokens: int
    completion_tokens: int
    decode_tokens: int  # completion tokens after each request's first
    prefill_s: float
    decode_s: float
    prefill_tps_now: float
    decode_tps_now: float
    prefill_tps_10s: float
    decode_tps_10s: float
    host_us_per_step: float  # the engine's own time a step, outside the native library
    kv_tokens: int  # in the slots, of running rows and left behind
    kv_capacity: int  # tokens that the slots can hold
    prefix_bytes: int  # kept beside the slots
    prefix_hit_rate: float  # of the tokens that rows began with, the share found cached
    preemptions: int
    completions: int
    graphs_reused: int | None  # steps without a new graph, where the runtime tells
    ttft_s: Percentiles
    tpot_s: Percentiles
    compiling: int = 0  # of those queued, whose constraint is being compiled
    forced_tokens: int = 0  # of the completion tokens, that constraints left no choice about
    proposed_tokens: int = 0  # guessed, and computed together with the token before
    accepted_tokens: int = 0  # of these, the ones that were sampled then
    drafted_tokens: int = 0  # of those guessed, the ones that the draft model guessed
    accepted_drafts: int = 0  # of these, the ones that were sampled then
    gpu_layers: int = 0  # of the model, that are computed on a GPU
    draft: str | None = None  # the name of the file that guesses, where one is loaded

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens a second of prefill since the start; 0 before the first."""
        return ratio(self.prompt_tokens, self.prefill_s)

    @property
    def decode_tps(self) -> float:
        """Output tokens a second of decode since the start, all rows together."""
        return ratio(self.decode_tokens, self.decode_s)


class Metrics:
    """Counters that the engine's thread feeds and any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # nothing comes in while it is read
        # Fields of ``EngineStats`` that only grow.
        counted = "steps prompt_tokens completion_tokens decode_tokens completions".split()
        self._sums = Tokens(dict.fromkeys(counted, 0))
        self._prefill_s = self._decode_s = 0.0
        self._host_s = 0.0  # in steps, outside the native library
        # Of the last ten seconds: when, tokens prefilled, tokens decoded.
        self._recent: deque[tuple[float, int, int]] = deque()
        self._ttft: deque[float] = deque(maxlen=_KEPT_COMPLETIONS)
        self._tpot: deque[float] = deque(maxlen=_KEPT_COMPLETIONS)

    def step(self, tokens: Tokens, *, native: float, whole: float) -> None:
        """Record a step's tokens and seconds. A mixed one's time is shared out between prefill and
        decode by their tokens."""
        now, prompt, decoded = time.monotonic(), tokens["prompt_tokens"], tokens["decode_tokens"]
        self._sums["steps"] += 1
        for name, count in tokens.items():
            self._sums[name] += count
        share = ratio(prompt, prompt + decoded)
        self._prefill_s += whole * share
        self._decode_s += whole * (1 - share)
        self._host_s += whole - native
        with self._lock:
            self._recent.append((now, prompt, decoded))
            while self._recent[0][0] < now - _RECENT_S:
                self._recent.popleft()

    def completed(self, timings: Timings) -> None:
        """Record the end of a sample."""
        self._sums["completions"] += 1
        with self._lock:
            if timings.completion_tokens:
                self._ttft.append(timings.ttft_s)
            if timings.tpot_s is not None:
                self._tpot.append(timings.tpot_s)

    def figures(self) -> dict[str, Any]:
        """The fields of ``EngineStats`` that are counted here, as they are now."""
        now = time.monotonic()
        with self._lock:
            recent, ttft, tpot = list(self._recent), list(self._ttft), list(self._tpot)
        prefill_now, decode_now = _rates(recent, now, 1.0)
        prefill_10s, decode_10s = _rates(recent, now, _RECENT_S)
        return {
            **self._sums,
            "prefill_s": self._prefill_s,
            "decode_s": self._decode_s,
            "prefill_tps_now": prefill_now,
            "decode_tps_now": decode_now,
            "prefill_tps_10s": prefill_10s,
            "decode_tps_10s": decode_10s,
            "host_us_per_step": 1e6 * ratio(self._host_s, self._sums["steps"]),
            "ttft_s": Percentiles.of(ttft),
            "tpot_s": Percentiles.of(tpot),
        }


def _rates(recent: list[tuple[float, int, int]], now: float, seconds: float) -> tuple[float, float]:
    """Tokens a second of prefill and of decode over the last ``seconds``."""
    recent = [event for event in recent if event[0] >= now - seconds]
    # A window that has only begun to fill is divided by the time that it covers.
    span = min(seconds, max(now - recent[0][0], 1e-3)) if len(recent) > 1 else seconds
    return sum(event[1] for event in recent) / span, sum(event[2] for event in recent) / span


def _histogram(found: list[float]) -> tuple[tuple[float, int], ...]:
    first, last = _bin(found[0]), _bin(found[-1])
    ends = [_LEAST_S * 2 ** (number / 2) for number in range(first, last + 1)]
    up_to = [0, *(bisect_right(found, end) for end in ends[:-1]), len(found)]
    return tuple((end, b - a) for end, (a, b) in zip(ends, pairwise(up_to), strict=True))


def _bin(value: float) -> int:
    return math.ceil(2 * math.log2(max(value / _LEAST_S, 1.0)))


def averaged(old: float | None, new: float) -> float:
    """An estimate after another measurement; ``old`` is None or 0 where it is the first."""
    return SMOOTHING * old + (1 - SMOOTHING) * new if old else new


def ratio(part: float, whole: float) -> float:
    """``part`` of ``whole``; 0 of nothing."""
    return part / whole if whole > 0 else 0.0
