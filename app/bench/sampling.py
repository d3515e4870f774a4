"""What choosing the tokens costs beside the decode step that makes their logits."""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.options import BenchOptions, Result
from runtimes.engine.loading import load_runner
from runtimes.errors import RequestError
from runtimes.models.modelfile import ModelFile
from runtimes.request import SamplingParams
from runtimes.runner import Logits, Runner, StepPlan, StepRow, require_full_logits
from runtimes.sampling import Sampled, SamplerState, sample
from runtimes.settings import RunnerSettings

_PROMPT = 32  # tokens behind which decode is timed
_SEEN = 500  # tokens that penalties count from the start
_WARM_UP = 3

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, top-p": {"temperature": 0.8, "top_p": 0.95},
    "temperature, top-k, top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "the same with penalties": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
    },
}


def sampling(path: Path, options: BenchOptions) -> Result:
    """Measure one model file at ``rows`` rows, ``repeats`` times for each of ``PARAMETERS``.

    Steps and sampling alternate as in the engine, on the thread that runs the steps, one set of
    parameters after each step: what a step leaves behind (caches, threads that still spin) counts.
    Raises what loading does, and RequestError for a context that is too short.
    """
    rows, repeats = options.rows, options.repeats
    context = _PROMPT + _WARM_UP + repeats * len(PARAMETERS) + 1
    settings = RunnerSettings(slots=rows, context=context, threads=options.cores)
    runner, _ = load_runner(ModelFile.read(path), settings)
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
    figures = {
        name: {
            "real_s": float(f"{real[name]:.5g}"),
            "flat_s": float(f"{flat[name]:.5g}"),
            "share": round(real[name] / step_s, 4),
            "flat_share": round(flat[name] / step_s, 4),
        }
        for name in PARAMETERS
    }
    lines = [
        f"{rows} rows, {vocabulary:,} tokens: a decode step takes "
        f"{1e3 * step_s:.2f} ms; sampling of it:",
        *(
            f"  {name:26s} {real[name] / step_s:7.2%}   (flat logits {flat[name] / step_s:.2%})"
            for name in PARAMETERS
        ),
    ]
    step = float(f"{step_s:.5g}")
    sizes = {"rows": rows, "vocabulary": vocabulary, "step_s": step}
    return Result({**sizes, "sampling": figures}, lines)


def _measure(
    runner: Runner, rows: int, repeats: int
) -> tuple[float, dict[str, float], dict[str, float]]:
    """Seconds, medians: of a decode step of all rows in the native library, and by ``PARAMETERS``
    of one call of ``sample`` for all rows, on the model's own logits, and on normally distributed
    ones of the same size, the worst case of a search for the likeliest.
    """
    vocabulary = runner.capabilities.vocab_size
    dice = random.Random(rows)
    tokens = [_prefill(runner, slot, dice) for slot in range(rows)]
    flat = np.random.default_rng(rows).normal(0, 1, (rows, vocabulary)).astype(np.float32)
    states = {name: _states(fields, rows, vocabulary) for name, fields in PARAMETERS.items()}
    steps: list[float] = []
    real: dict[str, list[float]] = {name: [] for name in PARAMETERS}
    even: dict[str, list[float]] = {name: [] for name in PARAMETERS}
    turns = [*list(PARAMETERS)[:_WARM_UP], *list(PARAMETERS) * repeats]
    for position, name in enumerate(turns, _PROMPT):
        plan = StepPlan(
            tuple(StepRow(slot, position, [token], 1) for slot, token in enumerate(tokens))
        )
        begin = time.perf_counter()
        logits = require_full_logits(runner.execute(plan))
        steps.append(time.perf_counter() - begin)
        real[name].append(_timed(logits, states[name]))
        tokens = _tokens(sample(logits, states["greedy"]))
        even[name].append(_timed(flat, states[name]))
    # The first turns have warmed up what they used.
    medians = [
        {name: statistics.median(taken[-repeats:]) for name, taken in costs.items()}
        for costs in (real, even)
    ]
    return statistics.median(steps[_WARM_UP:]), medians[0], medians[1]


def _prefill(runner: Runner, slot: int, dice: random.Random) -> int:
    """Put a random prompt into the slot; return a token to continue with."""
    vocabulary = runner.tokenizer.vocab_size
    prompt = [dice.randrange(vocabulary) for _ in range(_PROMPT)]
    logits = require_full_logits(runner.execute(StepPlan((StepRow(slot, 0, prompt, 1),))))
    return int(logits[0].argmax())


def _states(fields: dict[str, Any], rows: int, vocabulary: int) -> list[SamplerState]:
    dice = random.Random(1)
    seen = [dice.randrange(vocabulary) for _ in range(_SEEN)]
    return [SamplerState(SamplingParams(seed=row, **fields), seen) for row in range(rows)]


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
