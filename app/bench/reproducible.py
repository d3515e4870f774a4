"""What reproducible answers cost: one batch job with and without, by turns."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import greedy, loaded, random_prompts, run
from runtimes.request import Completion
from runtimes.settings import SchedulerSettings

_NAMES = {False: "usual", True: "reproducible"}


@dataclass(frozen=True, slots=True)
class ReproducibleResult:
    """Seconds for the whole job, a sample a round, without and with; ``differing`` is how many
    answers of the later rounds were not those of the first, whose requests came in another order.
    """

    requests: int
    slots: int
    prompt_tokens: int
    completion_tokens: int
    seconds: dict[bool, list[float]]
    differing: dict[bool, int]

    @property
    def cost(self) -> float:
        """The part of the tokens a second that is lost: of the median round of pairs."""
        pairs = zip(self.seconds[False], self.seconds[True], strict=True)
        return 1 - median([usual / reproducible for usual, reproducible in pairs])

    def tps(self, reproducible: bool) -> float:
        """Generated tokens a second of all the time, prefill included; the median round."""
        return self.completion_tokens / median(self.seconds[reproducible])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "requests": self.requests,
            "slots": self.slots,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": round(self.cost, 4),
            **{
                name: {
                    "seconds": rounded(self.seconds[kind]),
                    "tps": round(self.tps(kind), 2),
                    "answers_differing": self.differing[kind],
                }
                for kind, name in _NAMES.items()
            },
        }

    def lines(self) -> list[str]:
        """A line for each, and the cost."""
        again = self.requests * (len(self.seconds[True]) - 1)
        return [
            f"{self.requests} requests, {self.prompt_tokens:,} prompt and "
            f"{self.completion_tokens:,} generated tokens, {self.slots} slots",
            *(
                f"  {name}: {self.tps(kind):.1f} tok/s; of {again} answers again "
                f"{self.differing[kind]} were others"
                for kind, name in _NAMES.items()
            ),
            f"  it costs {self.cost:.1%} of the tokens a second",
        ]


def reproducible(path: Path, options: BenchOptions) -> ReproducibleResult:
    """Each round is one job of each kind, after an untimed one; the order of requests changes."""
    dice = random.Random(options.requests)
    asked = [
        (_about(options.prompt_tokens, dice), _about(options.decode_tokens, dice))
        for _ in range(options.requests)
    ]
    plain = options.settings(max(map(sum, asked)) + 1)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    first: dict[bool, list[Completion]] = {}
    differing = {False: 0, True: 0}
    for number in range(-1, options.repeats):
        order = dice.sample(range(len(asked)), len(asked))
        for kind in (False, True):
            settings = replace(plain, reproducible=kind)
            with loaded(path, settings, SchedulerSettings(max_stall_s=None)) as engine:
                prompts = random_prompts(engine, [length for length, _ in asked], len(asked))
                params = [greedy(tokens) for _, tokens in asked]
                begin = time.perf_counter()
                done = run(engine, [prompts[i] for i in order], [params[i] for i in order])
                took = time.perf_counter() - begin
            if number < 0:
                continue
            seconds[kind].append(took)
            by_index = [c for _, c in sorted(zip(order, done, strict=True), key=lambda x: x[0])]
            expected = first.setdefault(kind, by_index)
            differing[kind] += sum(
                a.token_ids != b.token_ids for a, b in zip(expected, by_index, strict=True)
            )
    return ReproducibleResult(
        requests=len(asked),
        slots=options.rows,
        prompt_tokens=sum(length for length, _ in asked),
        completion_tokens=sum(tokens for _, tokens in asked),
        seconds=seconds,
        differing=differing,
    )


def _about(mean: int, dice: random.Random) -> int:
    """Half to one and a half times ``mean``."""
    return dice.randint(max(1, mean // 2), max(1, 3 * mean // 2))
