"""One batch job under each batching strategy: speed, and whether the answers are the same."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result, median, rounded
from app.bench.work import about, greedy, loaded, random_prompts, timed_run
from runtimes.request import Completion, SamplingParams
from runtimes.settings import STRATEGIES, SchedulerSettings, Strategy

NEAR_TIE = 0.02  # natural-log probability between the two likeliest tokens
_REFERENCE: Strategy = "sequential"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy answers against those of one row at a time. An answer that differs does so from its
    first different token on; ``near_ties`` and ``others`` are the reference's log-probability
    between its two likeliest tokens there.
    """

    answers: int
    near_ties: list[float]
    others: list[float]

    @property
    def equal(self) -> int:
        """Answers that are the same to the last token."""
        return self.answers - len(self.near_ties) - len(self.others)


def strategies(path: Path, options: BenchOptions) -> Result:
    """Every strategy in turn, ``options.repeats`` rounds, after an untimed reference run."""
    dice = random.Random(options.requests)
    answers = [about(options.decode_tokens, dice) for _ in range(options.requests)]
    lengths = [about(options.prompt_tokens, dice) for _ in range(options.requests)]
    settings = options.settings(max(map(sum, zip(lengths, answers, strict=True))) + 1)

    def job(strategy: Strategy, params: Sequence[SamplingParams]) -> tuple[float, list[Completion]]:
        scheduling = SchedulerSettings(strategy=strategy, max_stall_s=None)
        with loaded(path, settings, scheduling) as engine:
            return timed_run(engine, random_prompts(engine, lengths, options.requests), params)

    _, reference = job(_REFERENCE, [greedy(n, top_logprobs=2) for n in answers])
    seconds: dict[Strategy, list[float]] = {name: [] for name in STRATEGIES}
    made: dict[Strategy, list[Completion]] = {name: [] for name in STRATEGIES}
    for _ in range(options.repeats):
        for name in STRATEGIES:
            took, done = job(name, [greedy(n) for n in answers])
            seconds[name].append(took)
            made[name] += done
    return _result(
        {
            "requests": options.requests,
            "slots": options.rows,
            "prompt_tokens": sum(lengths),
            "completion_tokens": sum(answers),
        },
        seconds,
        {name: compare(reference * options.repeats, done) for name, done in made.items()},
    )


def _result(
    sizes: dict[str, Any],
    seconds: dict[Strategy, list[float]],
    agreement: dict[Strategy, Agreement],
) -> Result:
    """Generated tokens a second of all the time, prefill included, and ratios of them."""
    tps = {name: sizes["completion_tokens"] / median(taken) for name, taken in seconds.items()}
    lines = [
        f"{sizes['requests']} requests, {sizes['prompt_tokens']:,} prompt and "
        f"{sizes['completion_tokens']:,} generated tokens, {sizes['slots']} slots: "
        "generated tok/s"
    ]
    figures = {}
    for name, taken in seconds.items():
        same, ratio = agreement[name], tps[name] / tps[_REFERENCE]
        figures[name] = {
            "seconds": rounded(taken),
            "tps": round(tps[name], 2),
            "ratio_to_sequential": round(ratio, 4),
            "answers_equal": same.equal,
            "answers_apart_at_a_near_tie": rounded(same.near_ties),
            "answers_apart_otherwise": rounded(same.others),
        }
        apart = f", {len(same.others)} apart otherwise" if same.others else ""
        lines.append(
            f"  {name}: {tps[name]:.1f}, {ratio:.2f} times sequential; of {same.answers} answers "
            f"{same.equal} equal, {len(same.near_ties)} apart at a near-tie (within {NEAR_TIE})"
            f"{apart}"
        )
    return Result({**sizes, "strategies": figures}, lines)


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
