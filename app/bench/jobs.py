"""One batch job in several ways: with and without the prefix cache, by each batching strategy, and
with reproducible answers. Every run has an engine of its own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, BenchResult, Samples, in_turn
from app.bench.work import about, greedy, loaded, random_prompts, timed_run
from app.figures import aligned
from runtimes.planner.measure import TURN_TOKENS
from runtimes.request import Completion
from runtimes.settings import STRATEGIES, RunnerSettings, SchedulerSettings, Strategy

# Of the prompts that share a prefix.
SYSTEM_TOKENS = 500
QUESTION_TOKENS = 16

_BATCH = SchedulerSettings(max_stall_s=None)  # nobody watches a row
NEAR_TIE = 0.02  # natural-log probability between the two likeliest tokens
_REFERENCE: Strategy = "sequential"

_Ran = tuple[float, list[Completion]]  # seconds, and the completions in the order of the requests


def prefix(path: Path, options: BenchOptions) -> BenchResult:
    """Many prompts behind one system prompt, another one each round: time to all first tokens,
    prefix cache on and off."""
    settings = options.settings(SYSTEM_TOKENS + QUESTION_TOKENS + 1)
    lengths = [SYSTEM_TOKENS, *[QUESTION_TOKENS] * options.requests]

    def side(cache: bool, seed: int) -> _Ran:
        scheduling = SchedulerSettings(max_stall_s=None, prefix_cache=cache)
        with loaded(path, settings, scheduling) as engine:
            system, *questions = random_prompts(engine, lengths, seed)
            prompts = [system + question for question in questions]
            return timed_run(engine, prompts, [greedy(1)] * len(prompts))

    taken = in_turn({cache: partial(side, cache) for cache in (True, False)}, options.repeats)
    on, off = (Samples(seconds for seconds, _ in taken[cache]) for cache in (True, False))
    cached = Samples(sum(one.usage.cached_tokens for one in done) for _, done in taken[True])
    prompt_tokens = options.requests * (SYSTEM_TOKENS + QUESTION_TOKENS)
    ratio = off.median / on.median
    figures = {
        "requests": options.requests,
        "slots": options.rows,
        "system_tokens": SYSTEM_TOKENS,
        "question_tokens": QUESTION_TOKENS,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "seconds_on": on,
        "seconds_off": off,
        "ratio": ratio,
    }
    line = (
        f"{options.requests} prompts behind {SYSTEM_TOKENS} common tokens, {options.rows} slots: "
        f"all first tokens after {on:.2f} s with the prefix cache, {off:.2f} s without: "
        f"{ratio:.2f} times faster; {cached:,.0f} of {prompt_tokens:,} tokens were cached"
    )
    return BenchResult(figures, [line])


def prefix_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """Many short rows behind one long prompt, another one each round: seconds of the whole job in a
    worker process, by the length of the prompt and the number of slots."""
    tokens, requests = options.decode_tokens, options.requests
    slot_counts = options.sizes or (1, 8, 16)
    cells: list[dict[str, Any]] = []
    table = [["common tokens", *(f"{n} slot{'s' if n > 1 else ''}" for n in slot_counts)]]
    for depth in options.depths or ():
        row = [f"{depth:,}"]
        for slots in slot_counts:
            settings = options.settings(depth + TURN_TOKENS + tokens + 1, rows=slots)
            taken: list[tuple[float, int]] = []
            for seed in range(options.repeats):
                with loaded(path, settings, _BATCH, worker=True) as engine:
                    past, *own = random_prompts(engine, [depth, *[TURN_TOKENS] * requests], seed)
                    prompts = [past + each for each in own]
                    took, done = timed_run(engine, prompts, [greedy(tokens)] * requests)
                    taken.append((took, sum(one.usage.cached_tokens for one in done)))
            seconds = Samples(each for each, _ in taken)
            cached = Samples(each for _, each in taken)
            prompt_tokens = requests * (depth + TURN_TOKENS)
            sizes = {"depth": depth, "slots": slots, "prompt_tokens": prompt_tokens}
            cells.append({**sizes, "seconds": seconds, "cached_tokens": cached})
            row.append(f"{seconds:.2f} s ({cached.median / prompt_tokens:.1%} cached)")
        table.append(row)
    title = f"{requests} rows of {TURN_TOKENS} + {tokens} tokens behind a common text, all together"
    return BenchResult({"requests": requests, "jobs": cells}, [title, *aligned(table)])


class _Job:
    """The same requests in every run, of half to one and a half times the usual sizes."""

    def __init__(self, path: Path, options: BenchOptions) -> None:
        dice = random.Random(options.requests)
        self._path = path
        self._tokens = [about(options.decode_tokens, dice) for _ in range(options.requests)]
        self._lengths = [about(options.prompt_tokens, dice) for _ in range(options.requests)]
        pairs = zip(self._lengths, self._tokens, strict=True)
        self.settings = options.settings(max(map(sum, pairs)) + 1)
        self.sizes = {
            "requests": options.requests,
            "slots": options.rows,
            "prompt_tokens": sum(self._lengths),
            "completion_tokens": sum(self._tokens),
        }
        self.title = (
            f"{options.requests} requests, {sum(self._lengths):,} prompt and "
            f"{sum(self._tokens):,} generated tokens, {options.rows} slots"
        )

    def run(
        self,
        settings: RunnerSettings,
        scheduling: SchedulerSettings,
        *,
        shuffle: int | None = None,
        top_logprobs: int = 0,
    ) -> _Ran:
        """``shuffle`` is the seed of another order in which they are submitted."""
        order = list(range(len(self._tokens)))
        if shuffle is not None:
            random.Random(shuffle).shuffle(order)
        with loaded(self._path, settings, scheduling) as engine:
            prompts = random_prompts(engine, self._lengths, len(order))
            params = [greedy(self._tokens[i], top_logprobs=top_logprobs) for i in order]
            seconds, done = timed_run(engine, [prompts[i] for i in order], params)
        answers = dict(zip(order, done, strict=True))
        return seconds, [answers[i] for i in sorted(answers)]

    def speed(self, runs: Sequence[_Ran]) -> tuple[float, dict[str, Any]]:
        """Generated tokens a second of all the time, prefill included, and the figures of that."""
        seconds = Samples(took for took, _ in runs)
        tps = sum(self._tokens) / seconds.median
        return tps, {"seconds": seconds, "tps": tps}


@dataclass(frozen=True, slots=True)
class AnswerParting:
    """Where an answer has another token for the first time. ``gap`` is the reference's
    log-probability between its two likeliest tokens there."""

    answer: int
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class JobAgreement:
    """Greedy answers against those of one row at a time."""

    answers: int
    partings: tuple[AnswerParting, ...]

    @property
    def near_ties(self) -> list[float]:
        """The gaps of those that part at a near-tie."""
        return [one.gap for one in self.partings if one.gap <= NEAR_TIE]

    @property
    def others(self) -> list[float]:
        """The gaps of all others that part."""
        return [one.gap for one in self.partings if one.gap > NEAR_TIE]

    @property
    def equal(self) -> int:
        """Answers that are the same to the last token."""
        return self.answers - len(self.partings)


def strategies(path: Path, options: BenchOptions) -> BenchResult:
    """Every batching strategy in turn, after an untimed reference run: speed, and whether the
    answers are the same."""
    job = _Job(path, options)

    def side(strategy: Strategy, _: int, top_logprobs: int = 0) -> _Ran:
        scheduling = SchedulerSettings(strategy=strategy, max_stall_s=None)
        return job.run(job.settings, scheduling, top_logprobs=top_logprobs)

    _, reference = side(_REFERENCE, 0, top_logprobs=2)
    taken = in_turn({name: partial(side, name) for name in STRATEGIES}, options.repeats)
    reference_tps, _ = job.speed(taken[_REFERENCE])
    figures = {}
    lines = [f"{job.title}: generated tok/s"]
    for name, runs in taken.items():
        tps, speed = job.speed(runs)
        ratio = tps / reference_tps
        same = compare(reference * len(runs), [answer for _, done in runs for answer in done])
        figures[name] = {
            **speed,
            "ratio_to_sequential": ratio,
            "answers_equal": same.equal,
            "answers_apart_at_a_near_tie": same.near_ties,
            "answers_apart_otherwise": same.others,
        }
        apart = f", {len(same.others)} apart otherwise" if same.others else ""
        lines.append(
            f"  {name}: {tps:.1f}, {ratio:.2f} times sequential; of {same.answers} answers "
            f"{same.equal} equal, {len(same.near_ties)} apart at a near-tie (within {NEAR_TIE})"
            f"{apart}"
        )
    return BenchResult({**job.sizes, "strategies": figures}, lines)


def compare(reference: Sequence[Completion], done: Sequence[Completion]) -> JobAgreement:
    """``reference`` has the two likeliest tokens of every position."""
    partings = []
    for answer, (left, right) in enumerate(zip(reference, done, strict=True)):
        pairs = enumerate(zip(left.token_ids, right.token_ids, strict=True))
        first = next((i for i, (a, b) in pairs if a != b), None)
        if first is None:
            continue
        assert left.top_logprobs is not None
        likeliest, second = sorted(left.top_logprobs[first].values(), reverse=True)[:2]
        partings.append(AnswerParting(answer, first, likeliest - second))
    return JobAgreement(len(reference), tuple(partings))


def reproducible(path: Path, options: BenchOptions) -> BenchResult:
    """What reproducible answers cost. The order of requests changes every round; answers that are
    not those of the first round are counted."""
    job = _Job(path, options)

    def side(kind: bool, seed: int) -> _Ran:
        settings = replace(job.settings, reproducible=kind)
        return job.run(settings, SchedulerSettings(max_stall_s=None), shuffle=seed)

    kinds = {"usual": False, "reproducible": True}
    sides = {name: partial(side, kind) for name, kind in kinds.items()}
    taken = in_turn(sides, options.repeats, warm_up=True)
    seconds = {name: Samples(took for took, _ in runs) for name, runs in taken.items()}
    cost = 1 - (seconds["usual"] / seconds["reproducible"]).median  # of the tokens a second
    figures: dict[str, Any] = {**job.sizes, "cost": cost}
    lines = [job.title]
    for name, runs in taken.items():
        answers = [[one.token_ids for one in done] for _, done in runs]
        again = [pair for later in answers[1:] for pair in zip(answers[0], later, strict=True)]
        differing = sum(a != b for a, b in again)
        tps, speed = job.speed(runs)
        figures[name] = {**speed, "answers_differing": differing}
        lines.append(
            f"  {name}: {tps:.1f} tok/s; of {len(again)} answers again {differing} were others"
        )
    return BenchResult(figures, [*lines, f"  it costs {cost:.1%} of the tokens a second"])
