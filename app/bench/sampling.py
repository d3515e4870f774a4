"""What choosing the tokens costs beside the decode step that makes their logits."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.harness import BenchOptions, BenchResult, Samples
from runtimes.engine.loading import load_runner
from runtimes.errors import RequestError
from runtimes.models.registry import read_model
from runtimes.request import SamplingParams
from runtimes.runner import Logits, Runner, StepPlan, StepRow, require_full_logits
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
    runner, _ = load_runner(read_model(path), settings)
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
    figures = {}
    lines = [
        f"{rows} rows, {vocabulary:,} tokens: a decode step takes "
        f"{1e3 * step_s:.2f} ms; sampling of it:"
    ]
    for name in PARAMETERS:
        real_s, flat_s = real[name].median, flat[name].median
        share, flat_share = real_s / step_s, flat_s / step_s
        figures[name] = {
            "real_s": real_s,
            "flat_s": flat_s,
            "share": share,
            "flat_share": flat_share,
        }
        lines.append(f"  {name:26s} {share:7.2%}   (flat logits {flat_share:.2%})")
    sizes = {"rows": rows, "vocabulary": vocabulary, "step_s": step_s}
    return BenchResult({**sizes, "sampling": figures}, lines)


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
            for samples in (steps, *real.values(), *even.values()):
                samples.clear()
        plan = [StepRow(slot, _PROMPT + turn, [token], 1) for slot, token in enumerate(tokens)]
        begin = time.perf_counter()
        logits = _step(runner, plan)
        steps.append(time.perf_counter() - begin)
        real[name].append(_timed(logits, states[name]))
        tokens = _tokens(sample(logits, states["greedy"]))
        even[name].append(_timed(flat, states[name]))
    return steps.median, real, even


def _step(runner: Runner, rows: Sequence[StepRow]) -> Logits:
    return require_full_logits(runner.execute(StepPlan(tuple(rows))))


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
