"""One batch job under each batching strategy: speed, and whether the answers are the same."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import greedy, loaded, random_prompts, run
from runtimes.request import Completion, SamplingParams
from runtimes.settings import STRATEGIES, SchedulerSettings, Strategy

NEAR_TIE = 0.02  # natural-log probability between the two likeliest tokens
_REFERENCE: Strategy = "sequential"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy answers against those of one row at a time. An answer that differs does so from its
    first different token on; ``gaps`` are the reference's log-probability between its two likeliest
    tokens there, those of near-ties and the others'.
    """

    answers: int
    near_ties: list[float]
    others: list[float]

    @property
    def equal(self) -> int:
        """Answers that are the same to the last token."""
        return self.answers - len(self.near_ties) - len(self.others)


@dataclass(frozen=True, slots=True)
class StrategiesResult:
    """Seconds for the whole job, a sample a round, and the agreement of all rounds' answers, by
    strategy.
    """

    requests: int
    slots: int
    prompt_tokens: int
    completion_tokens: int
    seconds: dict[Strategy, list[float]]
    agreement: dict[Strategy, Agreement]

    def tps(self, strategy: Strategy) -> float:
        """Generated tokens a second of all the time, prefill included; the median round."""
        return self.completion_tokens / median(self.seconds[strategy])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "requests": self.requests,
            "slots": self.slots,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "strategies": {
                name: {
                    "seconds": rounded(samples),
                    "tps": round(self.tps(name), 2),
                    "ratio_to_sequential": round(self.tps(name) / self.tps(_REFERENCE), 4),
                    "answers_equal": self.agreement[name].equal,
                    "answers_apart_at_a_near_tie": rounded(self.agreement[name].near_ties),
                    "answers_apart_otherwise": rounded(self.agreement[name].others),
                }
                for name, samples in self.seconds.items()
            },
        }

    def lines(self) -> list[str]:
        """A line for each strategy."""
        text = [
            f"{self.requests} requests, {self.prompt_tokens:,} prompt and "
            f"{self.completion_tokens:,} generated tokens, {self.slots} slots: generated tok/s"
        ]
        for name in self.seconds:
            same = self.agreement[name]
            apart = f", {len(same.others)} apart otherwise" if same.others else ""
            text.append(
                f"  {name}: {self.tps(name):.1f}, "
                f"{self.tps(name) / self.tps(_REFERENCE):.2f} times sequential; of "
                f"{same.answers} answers {same.equal} equal, {len(same.near_ties)} apart at a "
                f"near-tie (within {NEAR_TIE}){apart}"
            )
        return text


def strategies(path: Path, options: BenchOptions) -> StrategiesResult:
    """Every strategy in turn, ``options.repeats`` rounds, after an untimed reference run."""
    dice = random.Random(options.requests)
    answers = [_about(options.decode_tokens, dice) for _ in range(options.requests)]
    lengths = [_about(options.prompt_tokens, dice) for _ in range(options.requests)]
    settings = options.settings(max(map(sum, zip(lengths, answers, strict=True))) + 1)

    def job(strategy: Strategy, params: Sequence[SamplingParams]) -> tuple[float, list[Completion]]:
        scheduling = SchedulerSettings(strategy=strategy, max_stall_s=None)
        with loaded(path, settings, scheduling) as engine:
            prompts = random_prompts(engine, lengths, options.requests)
            begin = time.perf_counter()
            done = run(engine, prompts, params)
            return time.perf_counter() - begin, done

    _, reference = job(_REFERENCE, [greedy(n, top_logprobs=2) for n in answers])
    seconds: dict[Strategy, list[float]] = {name: [] for name in STRATEGIES}
    made: dict[Strategy, list[Completion]] = {name: [] for name in STRATEGIES}
    for _ in range(options.repeats):
        for name in STRATEGIES:
            took, done = job(name, [greedy(n) for n in answers])
            seconds[name].append(took)
            made[name] += done
    return StrategiesResult(
        requests=options.requests,
        slots=options.rows,
        prompt_tokens=sum(lengths),
        completion_tokens=sum(answers),
        seconds=seconds,
        agreement={name: compare(reference * options.repeats, all_) for name, all_ in made.items()},
    )


def compare(reference: Sequence[Completion], done: Sequence[Completion]) -> Agreement:
    """``reference`` has the two likeliest tokens of every position."""
    near: list[float] = []
    others: list[float] = []
    for left, right in zip(reference, done, strict=True):
        pairs = enumerate(zip(left.token_ids, right.token_ids, strict=True))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if first is None:
            continue
        gap = _gap(left, first)
        (near if gap <= NEAR_TIE else others).append(gap)
    return Agreement(len(reference), near, others)


def _gap(reference: Completion, position: int) -> float:
    if reference.top_logprobs is None:
        raise ValueError("the reference has no log-probabilities")
    values = sorted(reference.top_logprobs[position].values(), reverse=True)
    return values[0] - values[1]


def _about(mean: int, dice: random.Random) -> int:
    """Half to one and a half times ``mean``."""
    return dice.randint(max(1, mean // 2), max(1, 3 * mean // 2))
