"""How fast one model file is on this machine: prefill, and decode at several batch sizes."""

import itertools
import math
import random
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from runtimes.engine.engine import Engine
from runtimes.engine.metrics import EngineStats
from runtimes.machine.cpu import CpuUse, cpu_use, others_share
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings

_DECODE_PROMPT = 4  # tokens behind which decode is measured
_WARM_UP = 4  # tokens decoded before anything is timed
_LEAST = 4  # the part of a sample that is left of it where it is shortened: a quarter
# All prompts go in before any row decodes: where that is slow, fewer rows would decode meanwhile.
_LOCKSTEP = SchedulerSettings(max_stall_s=None)
# Each batch of prompts is another one: a prompt seen before would be found in the prefix cache.
_seeds = itertools.count()


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed: one row's prefill, and decode of each number of rows in lockstep."""

    rows: tuple[int, ...] = (1, 16)
    prompt_tokens: int = 128
    decode_tokens: int = 32
    # Samples of several rows that would take longer have fewer tokens, down to a quarter: where
    # steps are slow, a few of them say as much.
    sample_s: float = math.inf

    @property
    def context(self) -> int:
        """Tokens that a slot must hold."""
        return max(self.prompt_tokens, _DECODE_PROMPT + self.decode_tokens) + 1

    def shortened(self, tokens: int, tps: float, rows: int) -> int:
        """What a row has of its ``tokens``, if all rows together get ``tps`` a second."""
        fitting = self.sample_s * tps / rows
        return tokens if rows == 1 or fitting > tokens else max(tokens // _LEAST, int(fitting))


@dataclass(frozen=True, slots=True)
class SpeedFigures:
    """Tokens a second, one sample a repeat."""

    prefill_samples: tuple[float, ...]  # of one prompt
    decode_samples: dict[int, tuple[float, ...]]  # of so many rows in lockstep, all together
    batch_prefill: dict[int, float] = field(default_factory=dict)  # of so many prompts at once
    load_s: float | None = None  # from nothing to an engine that can take a step, the fewest rows
    others: float | None = None  # the share (0 to 1) of the processor that other programs took

    @property
    def prefill_tps(self) -> float:
        """The median sample."""
        return statistics.median(self.prefill_samples)

    @property
    def decode_tps(self) -> dict[int, float]:
        """The median sample for each number of rows."""
        return {rows: statistics.median(s) for rows, s in self.decode_samples.items()}

    def scaling(self, rows: int) -> float:
        """Decode of ``rows`` rows over that of the fewest rows measured, by their medians."""
        return self.decode_tps[rows] / self.decode_tps[min(self.decode_samples)]


def prefill_tps(engine: Engine, prompt_tokens: int, rows: int = 1) -> float:
    """Tokens a second of the prefill of one random prompt, or of ``rows`` at once."""
    before, after = _run(engine, rows, prompt_tokens, 1)
    return (after.prompt_tokens - before.prompt_tokens) / (after.prefill_s - before.prefill_s)


def decode_tps(engine: Engine, rows: int, tokens: int) -> float:
    """Tokens a second of ``rows`` rows together, each ``tokens`` long."""
    before, after = _run(engine, rows, _DECODE_PROMPT, tokens)
    return (after.decode_tokens - before.decode_tokens) / (after.decode_s - before.decode_s)


def measure_speed(
    path: str | Path,
    workload: Workload | None = None,
    *,
    repeats: int = 3,
    settings: RunnerSettings | None = None,
    batch_prefill: bool = False,
) -> SpeedFigures:
    """Greedy, EOS ignored, after a warm-up; an engine with as many slots as rows for each number of
    rows. ``settings`` gives what is neither slots nor context. ``batch_prefill`` times a prompt for
    every row at once, too. Raises as ``Engine.load``.
    """
    work = workload or Workload()
    base = settings or RunnerSettings()
    prefill: tuple[float, ...] = ()
    decode: dict[int, tuple[float, ...]] = {}
    together: dict[int, float] = {}
    load_s: float | None = None
    used: list[tuple[CpuUse, CpuUse]] = []
    for rows in work.rows:
        own = replace(base, slots=rows, context=work.context)
        begin = time.monotonic()
        with Engine.load(path, own, _LOCKSTEP) as engine:
            if load_s is None:
                load_s = time.monotonic() - begin
            warm = decode_tps(engine, rows, _WARM_UP)
            tokens = min(work.prompt_tokens, engine.context - 1)
            before = cpu_use()
            if not prefill:
                prefill = tuple(prefill_tps(engine, tokens) for _ in range(repeats))
            steps = work.shortened(work.decode_tokens, warm, rows)
            decode[rows] = tuple(decode_tps(engine, rows, steps) for _ in range(repeats))
            if batch_prefill:  # once: it is as long as that many prompts one after another
                each = work.shortened(tokens, statistics.median(prefill), rows)
                together[rows] = prefill_tps(engine, each, rows) if rows > 1 else prefill[-1]
            used.append((before, cpu_use()))
    return SpeedFigures(prefill, decode, together, load_s, others_share(used))


def _run(
    engine: Engine, rows: int, prompt_tokens: int, output_tokens: int
) -> tuple[EngineStats, EngineStats]:
    """The engine's figures before and after a batch of random prompts."""
    dice = random.Random(next(_seeds))
    vocabulary = min(engine.model.vocab_size, engine.tokenizer.vocab_size)
    prompts = [[dice.randrange(vocabulary) for _ in range(prompt_tokens)] for _ in range(rows)]
    before = engine.stats()
    engine.generate(prompts, SamplingParams(max_tokens=output_tokens, ignore_eos=True))
    return before, engine.stats()
