"""Token rates and latency figures of an engine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass


class RateWindow:
    """Tokens a second over the last ``seconds`` of wall time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, now: float, tokens: int) -> None:
        """Record ``tokens`` at ``now`` (monotonic seconds)."""
        self._events.append((now, tokens))
        self._sum += tokens
        self._expire(now)

    def rate(self, now: float) -> float:
        """Tokens a second; 0 with nothing in the window."""
        self._expire(now)
        if not self._events:
            return 0.0
        # A window that has only begun to fill is divided by the time that it covers.
        span = min(self._seconds, max(now - self._events[0][0], 1e-3))
        return self._sum / span if len(self._events) > 1 else self._sum / self._seconds

    def _expire(self, now: float) -> None:
        while self._events and self._events[0][0] < now - self._seconds:
            self._sum -= self._events.popleft()[1]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``prefill_s`` and ``decode_s`` are the seconds that steps of that kind took since
    the engine started; ``*_now`` are tokens a second over the last second of wall time.
    """

    slots: int
    context: int
    queued: int
    running: int
    steps: int
    prompt_tokens: int
    completion_tokens: int
    decode_tokens: int  # completion tokens after each request's first
    prefill_s: float
    decode_s: float
    prefill_tps_now: float
    decode_tps_now: float
    host_us_per_step: float  # the engine's own time a step, outside the native library

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens a second of prefill since the start; 0 before the first."""
        return _ratio(self.prompt_tokens, self.prefill_s)

    @property
    def decode_tps(self) -> float:
        """Output tokens a second of decode since the start, all rows together."""
        return _ratio(self.decode_tokens, self.decode_s)


class Metrics:
    """Counters that the engine's thread feeds and any thread may read."""

    def __init__(self) -> None:
        self.steps = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._prefill_seconds = self._decode_seconds = 0.0
        self._decode_tokens = 0
        self._native_seconds = self._step_seconds = 0.0
        self._prefill_now, self._decode_now = RateWindow(1.0), RateWindow(1.0)

    def step(self, *, prompt: int, sampled: int, decoded: int, native: float, whole: float) -> None:
        """Record a step: tokens prefilled, sampled, of these by decoding rows, and its seconds.

        A mixed step's time is shared out between prefill and decode by their tokens.
        """
        now = time.monotonic()
        self.steps += 1
        self.prompt_tokens += prompt
        self.completion_tokens += sampled
        self._decode_tokens += decoded
        share = prompt / (prompt + decoded) if prompt + decoded else 0.0
        self._prefill_seconds += whole * share
        self._decode_seconds += whole * (1 - share)
        self._native_seconds += native
        self._step_seconds += whole
        self._prefill_now.add(now, prompt)
        self._decode_now.add(now, decoded)

    def snapshot(self, *, slots: int, context: int, queued: int, running: int) -> EngineStats:
        """The figures now."""
        now = time.monotonic()
        return EngineStats(
            slots=slots,
            context=context,
            queued=queued,
            running=running,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            decode_tokens=self._decode_tokens,
            prefill_s=self._prefill_seconds,
            decode_s=self._decode_seconds,
            prefill_tps_now=self._prefill_now.rate(now),
            decode_tps_now=self._decode_now.rate(now),
            host_us_per_step=1e6 * _ratio(self._step_seconds - self._native_seconds, self.steps),
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
