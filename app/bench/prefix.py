"""Many prompts behind one system prompt: time to all first tokens, prefix cache on and off."""

from pathlib import Path

from app.bench.options import BenchOptions, Result, median, rounded
from app.bench.work import greedy, loaded, random_prompts, timed_run
from runtimes.settings import SchedulerSettings

SYSTEM_TOKENS = 500
QUESTION_TOKENS = 16


def prefix(path: Path, options: BenchOptions) -> Result:
    """On and off in turn, a new engine and a new system prompt each round."""
    settings = options.settings(SYSTEM_TOKENS + QUESTION_TOKENS + 1)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    cached: list[int] = []  # tokens of all prompts, cache on
    for seed in range(options.repeats):
        for use in (True, False):
            scheduling = SchedulerSettings(max_stall_s=None, prefix_cache=use)
            with loaded(path, settings, scheduling) as engine:
                [system] = random_prompts(engine, [SYSTEM_TOKENS], seed)
                lengths = [QUESTION_TOKENS] * options.requests
                questions = random_prompts(engine, lengths, seed + options.repeats)
                prompts = [system + question for question in questions]
                took, done = timed_run(engine, prompts, [greedy(1)] * len(prompts))
                seconds[use].append(took)
            if use:
                cached.append(sum(completion.usage.cached_tokens for completion in done))
    prompt_tokens = options.requests * (SYSTEM_TOKENS + QUESTION_TOKENS)
    ratio = median(seconds[False]) / median(seconds[True])
    figures = {
        "requests": options.requests,
        "slots": options.rows,
        "system_tokens": SYSTEM_TOKENS,
        "question_tokens": QUESTION_TOKENS,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "seconds_on": rounded(seconds[True]),
        "seconds_off": rounded(seconds[False]),
        "ratio": round(ratio, 4),
    }
    line = (
        f"{options.requests} prompts behind {SYSTEM_TOKENS} common tokens, {options.rows} slots: "
        f"all first tokens after {median(seconds[True]):.2f} s with the prefix cache, "
        f"{median(seconds[False]):.2f} s without: {ratio:.2f} times faster; "
        f"{median(cached):,.0f} of {prompt_tokens:,} tokens were cached"
    )
    return Result(figures, [line])
