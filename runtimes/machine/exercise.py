"""A short fixed generation: the same tokens everywhere, so that its logits can be compared.

It goes through every kind of step that the scheduler makes: prompts of more than one tile of rows,
a prompt in two parts, decoding of one row and of four.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from runtimes.runner import Logits, Runner, StepPlan, StepRow, require_full_logits
from runtimes.settings import RunnerSettings

Result = npt.NDArray[np.float32]

_PROMPTS = (64, 45, 41, 40)  # tokens; two 32-row tiles, and remainders of 13, 9 and 8 rows
_SPLIT_AT = 20  # the last prompt goes in twice
_STEPS = 3
SLOTS = len(_PROMPTS)


def settings(extra_buffers: bool) -> RunnerSettings:
    """Small, with two threads, since each has state of its own in some kernels."""
    return RunnerSettings(
        slots=SLOTS, context=96, batch=128, threads=2, gpu_layers=0, extra_buffers=extra_buffers
    )


def run(runner: Runner, vocabulary: int) -> Result:
    """Logits of every checkpoint, one after another: [checkpoints, vocabulary]."""
    collected: list[Logits] = []
    for plan in _plans(vocabulary):
        logits = require_full_logits(runner.execute(plan))
        if len(logits):
            collected.append(np.array(logits, np.float32))  # the runner's array lives one step
    return np.concatenate(collected)


def _plans(vocabulary: int) -> Iterator[StepPlan]:
    rows = [_tokens(slot, length + 2 * _STEPS, vocabulary) for slot, length in enumerate(_PROMPTS)]
    for slot, length in enumerate(_PROMPTS[:-1]):
        yield _plan((slot, 0, rows[slot][:length]))
    last, length = SLOTS - 1, _PROMPTS[-1]
    yield StepPlan((StepRow(last, 0, rows[last][:_SPLIT_AT], 0),))
    yield _plan((last, _SPLIT_AT, rows[last][_SPLIT_AT:length]))
    for step in range(_STEPS):
        yield _plan((0, _PROMPTS[0] + step, [rows[0][_PROMPTS[0] + step]]))
    for step in range(_STEPS):
        positions = [p + step + (_STEPS if slot == 0 else 0) for slot, p in enumerate(_PROMPTS)]
        yield _plan(*((slot, at, [rows[slot][at]]) for slot, at in enumerate(positions)))


def _plan(*rows: tuple[int, int, list[int]]) -> StepPlan:
    return StepPlan(tuple(StepRow(slot, at, tokens, 1) for slot, at, tokens in rows))


def _tokens(slot: int, count: int, vocabulary: int) -> list[int]:
    return [(37 * n * n + 101 * n + 59 * slot + 3) % vocabulary for n in range(count)]
