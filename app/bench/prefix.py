"""Many prompts behind one system prompt: time to all first tokens, prefix cache on and off."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import greedy, loaded, random_prompts, run
from runtimes.settings import SchedulerSettings

SYSTEM_TOKENS = 500
QUESTION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PrefixResult:
    """Seconds until every prompt has its first token, a sample a round."""

    requests: int
    slots: int
    on: list[float]
    off: list[float]
    cached_tokens: list[int]  # of all prompts, cache on
    prompt_tokens: int

    @property
    def ratio(self) -> float:
        """How many times faster with the cache."""
        return median(self.off) / median(self.on)

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "requests": self.requests,
            "slots": self.slots,
            "system_tokens": SYSTEM_TOKENS,
            "question_tokens": QUESTION_TOKENS,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "seconds_on": rounded(self.on),
            "seconds_off": rounded(self.off),
            "ratio": round(self.ratio, 4),
        }

    def lines(self) -> list[str]:
        """One line."""
        return [
            f"{self.requests} prompts behind {SYSTEM_TOKENS} common tokens, {self.slots} slots: "
            f"all first tokens after {median(self.on):.2f} s with the prefix cache, "
            f"{median(self.off):.2f} s without: {self.ratio:.2f} times faster; "
            f"{median(self.cached_tokens):,.0f} of {self.prompt_tokens:,} tokens were cached"
        ]


def prefix(path: Path, options: BenchOptions) -> PrefixResult:
    """On and off in turn, a new engine and a new system prompt each round."""
    settings = options.settings(SYSTEM_TOKENS + QUESTION_TOKENS + 1)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    cached: list[int] = []
    for seed in range(options.repeats):
        for use in (True, False):
            scheduling = SchedulerSettings(max_stall_s=None, prefix_cache=use)
            with loaded(path, settings, scheduling) as engine:
                [system] = random_prompts(engine, [SYSTEM_TOKENS], seed)
                lengths = [QUESTION_TOKENS] * options.requests
                questions = random_prompts(engine, lengths, seed + options.repeats)
                prompts = [system + question for question in questions]
                begin = time.perf_counter()
                done = run(engine, prompts, [greedy(1)] * len(prompts))
                seconds[use].append(time.perf_counter() - begin)
            if use:
                cached.append(sum(completion.usage.cached_tokens for completion in done))
    return PrefixResult(
        requests=options.requests,
        slots=options.rows,
        on=seconds[True],
        off=seconds[False],
        cached_tokens=cached,
        prompt_tokens=options.requests * (SYSTEM_TOKENS + QUESTION_TOKENS),
    )
