"""What reproducible answers cost: one batch job with and without, by turns."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result, median, paired, rounded
from app.bench.work import about, greedy, loaded, random_prompts, timed_run
from runtimes.settings import SchedulerSettings

_NAMES = {False: "usual", True: "reproducible"}


def reproducible(path: Path, options: BenchOptions) -> Result:
    """Each round is one job of each kind, after an untimed one; the order of requests changes, and
    answers that are not those of the first round are counted.
    """
    dice = random.Random(options.requests)
    asked = [
        (about(options.prompt_tokens, dice), about(options.decode_tokens, dice))
        for _ in range(options.requests)
    ]
    params = [greedy(tokens) for _, tokens in asked]
    plain = options.settings(max(map(sum, asked)) + 1)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    first: dict[bool, list[tuple[int, ...]]] = {}
    differing = {False: 0, True: 0}
    for number in range(-1, options.repeats):
        order = dice.sample(range(len(asked)), len(asked))
        for kind in (False, True):
            settings = replace(plain, reproducible=kind)
            with loaded(path, settings, SchedulerSettings(max_stall_s=None)) as engine:
                prompts = random_prompts(engine, [length for length, _ in asked], len(asked))
                took, done = timed_run(
                    engine, [prompts[i] for i in order], [params[i] for i in order]
                )
            if number < 0:
                continue
            seconds[kind].append(took)
            made = dict(zip(order, (completion.token_ids for completion in done), strict=True))
            answers = [made[i] for i in range(len(asked))]
            expected = first.setdefault(kind, answers)
            differing[kind] += sum(a != b for a, b in zip(expected, answers, strict=True))

    cost = 1 - paired(seconds[False], seconds[True])  # of the tokens a second
    prompt_tokens = sum(length for length, _ in asked)
    completion_tokens = sum(tokens for _, tokens in asked)
    tps = {kind: completion_tokens / median(seconds[kind]) for kind in _NAMES}
    figures: dict[str, Any] = {
        "requests": len(asked),
        "slots": options.rows,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cost": round(cost, 4),
    }
    lines = [
        f"{len(asked)} requests, {prompt_tokens:,} prompt and "
        f"{completion_tokens:,} generated tokens, {options.rows} slots"
    ]
    for kind, name in _NAMES.items():
        figures[name] = {
            "seconds": rounded(seconds[kind]),
            "tps": round(tps[kind], 2),
            "answers_differing": differing[kind],
        }
        lines.append(
            f"  {name}: {tps[kind]:.1f} tok/s; of {len(asked) * (options.repeats - 1)} answers "
            f"again {differing[kind]} were others"
        )
    lines.append(f"  it costs {cost:.1%} of the tokens a second")
    return Result(figures, lines)
