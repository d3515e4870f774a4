"""How fast one model file is on this machine: prefill, and decode at several batch sizes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtimes.engine import Engine
from runtimes.metrics import EngineStats
from runtimes.request import SamplingParams
from runtimes.runner import RunnerSettings


@dataclass(frozen=True, slots=True)
class SpeedFigures:
    """Tokens a second, each the median of the repeats. ``decode_tps`` maps rows in lockstep to the
    tokens a second of all of them together.
    """

    prefill_tps: float
    decode_tps: dict[int, float]


def measure_speed(
    path: str | Path,
    rows: Sequence[int] = (1, 16),
    *,
    prompt_tokens: int = 128,
    decode_tokens: int = 32,
    repeats: int = 3,
    settings: RunnerSettings | None = None,
) -> SpeedFigures:
    """Run random token prompts greedily, EOS ignored, after one warm-up.

    Prefill is one row's prompt; decode starts from prompts of 16 tokens. Raises as ``Engine.load``.
    """
    settings = settings or RunnerSettings(slots=max(rows), context=prompt_tokens + decode_tokens)
    with Engine.load(path, settings) as engine:
        dice = random.Random(0)
        vocabulary = min(engine.model.vocab_size, engine.tokenizer.vocab_size)

        def run(count: int, prompt: int, output: int) -> tuple[EngineStats, EngineStats]:
            prompts = [[dice.randrange(vocabulary) for _ in range(prompt)] for _ in range(count)]
            before = engine.stats()
            engine.generate(prompts, SamplingParams(max_tokens=output, ignore_eos=True))
            return before, engine.stats()

        run(max(rows), 16, 4)
        prefill = [_prefill_tps(*run(1, prompt_tokens, 1)) for _ in range(repeats)]
        decode = {
            count: statistics.median(
                _decode_tps(*run(count, 16, decode_tokens)) for _ in range(repeats)
            )
            for count in rows
        }
    return SpeedFigures(statistics.median(prefill), decode)


def _prefill_tps(before: EngineStats, after: EngineStats) -> float:
    return (after.prompt_tokens - before.prompt_tokens) / (after.prefill_s - before.prefill_s)


def _decode_tps(before: EngineStats, after: EngineStats) -> float:
    return (after.decode_tokens - before.decode_tokens) / (after.decode_s - before.decode_s)
