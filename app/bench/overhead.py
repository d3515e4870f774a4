"""Costs beside the decode steps: choosing the tokens, and the worker process."""

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.frame import BenchResult, Samples, compared, in_turn, samples
from app.bench.options import BenchOptions
from app.bench.work import greedy, loaded, random_prompts, timed_run
from runtimes.api import EngineApi
from runtimes.engine.loading import load_runner
from runtimes.errors import RequestError
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.runner import Logits, Runner, StepRow, require_full_logits
from runtimes.sampling import Sampled, SamplerState, sample
from runtimes.settings import RunnerSettings

_PROMPT = 32  # tokens behind which decode is timed
_SEEN = 500  # tokens that penalties count from the start
_WARM_UP = 3

_TOP_P: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, top-p": {"temperature": 0.8, "top_p": 0.95},
    "temperature, top-k, top-p": _TOP_P,
    "the same with penalties": {**_TOP_P, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}


def sampling(path: Path, options: BenchOptions) -> BenchResult:
    """Measure one model file at ``rows`` rows, ``repeats`` times for each of ``PARAMETERS``.

    Steps and sampling alternate as in the engine, on the thread that runs the steps, one set of
    parameters after each step: what a step leaves behind (caches, threads that still spin) counts.
    Raises what loading does, and RequestError for a context that is too short.
    """
    rows, repeats = options.rows, options.repeats
    context = _PROMPT + _WARM_UP + repeats * len(PARAMETERS) + 1
    settings = RunnerSettings(slots=rows, context=context, threads=options.cores)
    runner = load_runner(read_model(path), settings)
    try:
        if runner.capabilities.context < context:
            raise RequestError(
                f"{repeats} repeats need a context of {context} tokens; the model's is "
                f"{runner.capabilities.context}; take fewer"
            )
        vocabulary = runner.capabilities.vocab_size
        step_s, real, flat = _measure(runner, rows, repeats)
    finally:
        runner.close()
    shares = {
        name: {"share": real[name].median / step_s, "flat_share": flat[name].median / step_s}
        for name in PARAMETERS
    }
    lines = [
        f"{rows} rows, {vocabulary:,} tokens: a decode step takes "
        f"{1e3 * step_s:.2f} ms; sampling of it:",
        *(
            f"  {name:26s} {one['share']:7.2%}   (flat logits {one['flat_share']:.2%})"
            for name, one in shares.items()
        ),
    ]
    figures = {"vocabulary": vocabulary, "step_s": step_s, "sampling": shares}
    return BenchResult(figures, lines)


def _measure(
    runner: Runner, rows: int, repeats: int
) -> tuple[float, dict[str, Samples], dict[str, Samples]]:
    """Seconds: of the median decode step of all rows in the native library, and by ``PARAMETERS``
    of one call of ``sample`` for all rows, on the model's own logits, and on normally distributed
    ones of the same size, the worst case of a search for the likeliest.
    """
    vocabulary = runner.capabilities.vocab_size
    dice = random.Random(rows)
    seen = [dice.randrange(vocabulary) for _ in range(_SEEN)]
    states = {
        name: [SamplerState(SamplingParams(seed=row, **fields), seen) for row in range(rows)]
        for name, fields in PARAMETERS.items()
    }
    prompts = [[dice.randrange(vocabulary) for _ in range(_PROMPT)] for _ in range(rows)]
    tokens = [int(_step(runner, [StepRow(i, 0, prompts[i], 1)]).argmax()) for i in range(rows)]
    flat = np.random.default_rng(rows).normal(0, 1, (rows, vocabulary)).astype(np.float32)
    steps = Samples()
    real = {name: Samples() for name in PARAMETERS}
    even = {name: Samples() for name in PARAMETERS}
    turns = [*list(PARAMETERS)[:_WARM_UP], *list(PARAMETERS) * repeats]
    for turn, name in enumerate(turns):
        if turn == _WARM_UP:
            for found in (steps, *real.values(), *even.values()):
                found.clear()
        plan = [StepRow(slot, _PROMPT + turn, [token], 1) for slot, token in enumerate(tokens)]
        begin = time.perf_counter()
        logits = _step(runner, plan)
        steps.append(time.perf_counter() - begin)
        real[name].append(_timed(logits, states[name]))
        tokens = _tokens(sample(logits, states["greedy"]))
        even[name].append(_timed(flat, states[name]))
    return steps.median, real, even


def _step(runner: Runner, rows: Sequence[StepRow]) -> Logits:
    return require_full_logits(runner.execute(rows))


def _timed(logits: Logits, states: Sequence[SamplerState]) -> float:
    """Seconds of one call; the states move on to their next numbers."""
    begin = time.perf_counter()
    sampled = sample(logits, states)
    seconds = time.perf_counter() - begin
    for state, token in zip(states, _tokens(sampled), strict=True):
        state.accept(token)
    return seconds


def _tokens(sampled: Sequence[Sampled]) -> list[int]:
    return [one.token for one in sampled if one.token is not None]


_BEHIND = 16  # tokens of a prompt; what is compared is decoding and the way of the first token
_PROBES = 5  # requests for a single token; their median is a sample's


def worker_overhead(path: Path, options: BenchOptions) -> BenchResult:
    """The engine in a worker process against the engine in this one: greedy decoding with 1 row and
    with ``options.rows``, in turn on both."""
    figures: dict[str, Any] = {}
    lines: list[str] = []
    for rows in (1, options.rows):
        settings = options.settings(_BEHIND + options.decode_tokens + 1, rows=rows)
        with loaded(path, settings) as engine, loaded(path, settings, worker=True) as other:
            sides = {
                "here": partial(_sample, engine, options.decode_tokens),
                "worker": partial(_sample, other, options.decode_tokens),
            }
            taken = in_turn(sides, options.repeats)
        tps = samples(taken, lambda sample: sample[0])
        ttft = samples(taken, lambda sample: sample[1])
        figures[str(rows)] = {
            "tps_ratio": (tps["worker"] / tps["here"]).median,
            **{f"{side}_tps": found for side, found in tps.items()},
            **{f"{side}_ttft_s": found for side, found in ttft.items()},
        }
        lines += compared(f"{rows} row{'s' * (rows > 1)}: tok/s", tps)
        lines += compared("seconds to the first token", ttft, ".4f")
    return BenchResult({"rows": figures}, lines)


def _sample(engine: EngineApi, tokens: int, seed: int) -> tuple[float, float]:
    """Tokens a second of all rows over the time from the first submission to the last row's end;
    and seconds until a caller has the answer to a request for a single token."""
    rows = engine.slots
    prompts = random_prompts(engine, [_BEHIND] * (rows + _PROBES), seed)
    engine.trim()  # else a prompt's second use would skip its prefill
    # Not a longer answer's first piece: a random model's first tokens may give no text.
    first_s = Samples(timed_run(engine, [prompt], [greedy(1)])[0] for prompt in prompts[rows:])
    seconds, _ = timed_run(engine, prompts[:rows], [greedy(tokens)] * rows)
    return rows * tokens / seconds, first_s.median
