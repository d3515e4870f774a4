"""How fast one model file is on this machine: prefill, a conversation's turn, and decode at several
batch sizes, each behind tokens that its rows' KV caches hold already."""

import itertools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runtimes.engine.engine import Engine
from runtimes.engine.metrics import EngineStats
from runtimes.errors import IngotError
from runtimes.machine.cpu import CpuUse, cpu_use, others_share
from runtimes.request import SamplingParams
from runtimes.settings import RunnerSettings, SchedulerSettings

TURN_TOKENS = 40  # a short question, as people and agents ask it behind a long conversation
# Tokens of each row's own, behind which decode is measured; llama-batched-bench has no fewer.
DECODE_PROMPT = 4
_WARM_UP = 4  # tokens decoded before anything is timed
_LEAST = 4  # the part of a sample that is left of it where it is shortened: a quarter
# All prompts go in before any row decodes: where that is slow, fewer rows would decode meanwhile.
_LOCKSTEP = SchedulerSettings(max_stall_s=None)
# Each batch of prompts is another one: a prompt seen before would be found in the prefix cache.
_seeds = itertools.count()


@dataclass(frozen=True, slots=True)
class Workload:
    """Workload that is timed behind each depth: one row's prefill and its turn of TURN_TOKENS, and
    decode of each number of rows in lockstep."""

    rows: tuple[int, ...] = (1, 16)
    prompt_tokens: int = 128
    decode_tokens: int = 32
    # Samples of several rows that would take longer have fewer tokens, down to a quarter: where
    # steps are slow, a few of them say as much.
    sample_s: float = math.inf
    depths: tuple[int, ...] = (0,)  # tokens in a row's KV cache, the least first

    @property
    def context(self) -> int:
        """Tokens that a slot must hold."""
        most = max(self.prompt_tokens, TURN_TOKENS, DECODE_PROMPT + self.decode_tokens)
        return self.depths[-1] + most + 1

    def shortened(self, tokens: int, tps: float, rows: int) -> int:
        """Return how many of a row's ``tokens`` are timed, if all rows together get ``tps`` a
        second."""
        fitting = self.sample_s * tps / rows
        return tokens if rows == 1 or fitting > tokens else max(tokens // _LEAST, int(fitting))


@dataclass(slots=True)
class SpeedFigures:
    """Tokens a second, one sample a repeat."""

    prefill_samples: tuple[float, ...] = ()  # of one prompt
    turn_samples: tuple[float, ...] = ()  # of a prompt of TURN_TOKENS
    # Of so many rows in lockstep, all together.
    decode_samples: dict[int, tuple[float, ...]] = field(default_factory=dict)
    batch_prefill: dict[int, float] = field(default_factory=dict)  # of so many prompts at once
    load_s: float | None = None  # from nothing to an engine that can take a step, the fewest rows
    # Of the processor, before and after the samples.
    used: list[tuple[CpuUse, CpuUse]] = field(default_factory=list)

    @property
    def prefill_tps(self) -> float:
        """The median sample."""
        return statistics.median(self.prefill_samples)

    @property
    def turn_tps(self) -> float:
        """The median sample."""
        return statistics.median(self.turn_samples)

    @property
    def decode_tps(self) -> dict[int, float]:
        """The median sample for each number of rows."""
        return {rows: statistics.median(s) for rows, s in self.decode_samples.items()}

    @property
    def others(self) -> float:
        """The share (0 to 1) of the processor that other programs took."""
        return others_share(self.used)

    def scaling(self, rows: int) -> float:
        """Decode of ``rows`` rows over that of the fewest rows measured, by their medians."""
        return self.decode_tps[rows] / self.decode_tps[min(self.decode_samples)]


def prefill_tps(engine: Engine, tokens: int, rows: int = 1, past: Sequence[int] = ()) -> float:
    """Tokens a second of the prefill of one random prompt, or of ``rows`` at once, behind ``past``.

    Raises IngotError for an engine that does not keep what it has computed of ``past``.
    """
    before, after = _run(engine, rows, tokens, 1, past)
    return (after.prompt_tokens - before.prompt_tokens) / (after.prefill_s - before.prefill_s)


def decode_tps(engine: Engine, rows: int, tokens: int, past: Sequence[int] = ()) -> float:
    """Tokens a second of ``rows`` rows together, each ``tokens`` long, behind ``past``."""
    before, after = _run(engine, rows, DECODE_PROMPT, tokens, past)
    return (after.decode_tokens - before.decode_tokens) / (after.decode_s - before.decode_s)


def measure_depths(
    path: Path,
    work: Workload,
    *,
    repeats: int,
    settings: RunnerSettings | None = None,
    batch_prefill: bool = False,
) -> dict[int, SpeedFigures]:
    """Greedy, EOS ignored, after a warm-up; an engine with as many slots as rows for each number of
    rows. ``settings`` gives what is neither slots nor context; ``batch_prefill`` times a prompt for
    every row at once, too. Raises as ``Engine.load``.
    """
    found = {depth: SpeedFigures() for depth in work.depths}
    for rows in work.rows:
        own = replace(settings or RunnerSettings(), slots=rows, context=work.context)
        begin = time.monotonic()
        with Engine.load(path, own, _LOCKSTEP) as engine:
            load_s = time.monotonic() - begin
            speed = decode_tps(engine, rows, _WARM_UP)
            steps = work.shortened(work.decode_tokens, speed, rows)
            (longest,) = random_tokens(_vocabulary(engine), 1, work.depths[-1])
            for depth, figures in found.items():
                past, before = longest[:depth], cpu_use()
                room = engine.context - 1 - depth
                if not figures.prefill_samples:
                    prompt, turn = min(work.prompt_tokens, room), min(TURN_TOKENS, room)
                    # First, since what a long prompt leaves in the slot would be kept elsewhere.
                    figures.turn_samples = tuple(
                        prefill_tps(engine, turn, 1, past) for _ in range(repeats)
                    )
                    figures.prefill_samples = tuple(
                        prefill_tps(engine, prompt, 1, past) for _ in range(repeats)
                    )
                    figures.load_s = load_s
                figures.decode_samples[rows] = tuple(
                    decode_tps(engine, rows, steps, past) for _ in range(repeats)
                )
                if batch_prefill:  # once: it is as long as that many prompts one after another
                    each = work.shortened(min(work.prompt_tokens, room), figures.prefill_tps, rows)
                    several = prefill_tps(engine, each, rows, past) if rows > 1 else None
                    figures.batch_prefill[rows] = several or figures.prefill_samples[-1]
                figures.used.append((before, cpu_use()))
    return found


def random_tokens(vocabulary: int, rows: int, tokens: int) -> list[list[int]]:
    """Others with each call, the same in each process."""
    dice = random.Random(next(_seeds))
    return [[dice.randrange(vocabulary) for _ in range(tokens)] for _ in range(rows)]


def _vocabulary(engine: Engine) -> int:
    return min(engine.model.vocab_size, engine.tokenizer.vocab_size)


def _run(
    engine: Engine, rows: int, prompt_tokens: int, output_tokens: int, past: Sequence[int]
) -> tuple[EngineStats, EngineStats]:
    """The engine's figures before and after a batch of random prompts behind ``past``, which every
    slot holds by then, and nothing else."""
    if past:  # a conversation continues even where states cannot be cut back
        once = SamplingParams(max_tokens=1, ignore_eos=True)
        engine.generate([list(past)] * rows, once)
    prompts = [[*past, *own] for own in random_tokens(_vocabulary(engine), rows, prompt_tokens)]
    before = engine.stats()
    engine.generate(prompts, SamplingParams(max_tokens=output_tokens, ignore_eos=True))
    after = engine.stats()
    computed, new = after.prompt_tokens - before.prompt_tokens, rows * prompt_tokens
    if past and computed > new:
        raise IngotError(
            f"behind {len(past):,} tokens, the engine computed {computed:,} where {new:,} are new:"
            " it does not keep this model's states, so that there is no speed at this depth"
        )
    return before, after
