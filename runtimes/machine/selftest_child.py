"""The part of the self-test that may die: runs one native runtime, in a process of its own.

    python -m runtimes.machine.selftest_child RUNTIME [--safe] [--record]

Answers with one JSON line: the kernels that ran, and how far the logits of an exercise are from the
recorded ones. The exercise is a short fixed generation, the same tokens everywhere. It goes through
every kind of step that the scheduler makes: prompts of more than one tile of rows, a prompt in two
parts, decoding of one row and of four.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runtimes.backend import Backend
from runtimes.machine.linechild import exchange
from runtimes.machine.selftest import ATTENTION_DEPTH
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import MODULES, backend, read_model
from runtimes.runner import Logits, Runner, StepRow, StepRows, require_full_logits
from runtimes.settings import FlashAttention, RunnerSettings

Result = npt.NDArray[np.float32]

_PROMPTS = (64, 45, 41, 40)  # tokens; two 32-row tiles, and remainders of 13, 9 and 8 rows
_SPLIT_AT = 20  # the last prompt goes in twice
_STEPS = 3
SLOTS = len(_PROMPTS)

_TURN, _ANSWER, _ROUNDS = 40, 32, 2  # tokens, of what attention is timed on; of the best round


def exercise_settings(tested: Backend, extra_buffers: bool) -> RunnerSettings:
    """Small, with two threads, since each has state of its own in some kernels. llama.cpp's on the
    processor alone: with no layer on a GPU, it still sends there the products of many rows."""
    return RunnerSettings(
        slots=SLOTS,
        context=96,
        batch=128,
        threads=2,
        device="cpu" if "gpu_layers" in tested.knows else "auto",
        extra_buffers=extra_buffers,
    )


def exercise(runner: Runner, vocabulary: int) -> Result:
    """Logits of every checkpoint, one after another: [checkpoints, vocabulary]."""
    collected: list[Logits] = []
    for plan in _plans(vocabulary):
        logits = require_full_logits(runner.execute(plan))
        if len(logits):
            collected.append(np.array(logits, np.float32))  # the runner's array lives one step
    return np.concatenate(collected)


def _plans(vocabulary: int) -> Iterator[StepRows]:
    rows = [_tokens(slot, length + 2 * _STEPS, vocabulary) for slot, length in enumerate(_PROMPTS)]
    for slot, length in enumerate(_PROMPTS[:-1]):
        yield _plan((slot, 0, rows[slot][:length]))
    last, length = SLOTS - 1, _PROMPTS[-1]
    yield (StepRow(last, 0, rows[last][:_SPLIT_AT], 0),)
    yield _plan((last, _SPLIT_AT, rows[last][_SPLIT_AT:length]))
    for step in range(_STEPS):
        yield _plan((0, _PROMPTS[0] + step, [rows[0][_PROMPTS[0] + step]]))
    for step in range(_STEPS):
        positions = [p + step + (_STEPS if slot == 0 else 0) for slot, p in enumerate(_PROMPTS)]
        yield _plan(*((slot, at, [rows[slot][at]]) for slot, at in enumerate(positions)))


def _plan(*rows: tuple[int, int, list[int]]) -> StepRows:
    return tuple(StepRow(slot, at, tokens, 1) for slot, at, tokens in rows)


def _tokens(slot: int, count: int, vocabulary: int) -> list[int]:
    return [(37 * n * n + 101 * n + 59 * slot + 3) % vocabulary for n in range(count)]


def attention_ratio(tested: Backend, model: ModelFile, safe: bool) -> float | None:
    """How many times as fast a turn and its answer go behind a long text with flash attention as
    without it; None where a runtime has one kernel alone."""
    if "flash_attention" not in tested.knows:
        return None
    seconds: dict[FlashAttention, float] = {"on": math.inf, "off": math.inf}
    # In turn, so that other programs slow down both; more often before the usual way is given up.
    for number in range(_ROUNDS * 3):
        if number >= _ROUNDS and seconds["off"] > seconds["on"]:
            break
        for kind in seconds:
            settings = replace(
                exercise_settings(tested, extra_buffers=not safe),
                slots=1,
                context=ATTENTION_DEPTH + _TURN + _ANSWER + 1,
                threads=1,
                flash_attention=kind,
            )
            runner = tested.open(model, settings)
            seconds[kind] = min(seconds[kind], _behind(runner, model.vocab_size))
            runner.close()
    return seconds["off"] / seconds["on"]


def _behind(runner: Runner, vocabulary: int) -> float:
    """Seconds that a turn and its answer take of the processor, whoever else uses it: with one
    thread, this one computes all."""
    tokens = _tokens(0, ATTENTION_DEPTH + _TURN + _ANSWER, vocabulary)
    step = runner.capabilities.batch
    for at in range(0, ATTENTION_DEPTH, step):
        runner.execute(_plan((0, at, tokens[at : min(at + step, ATTENTION_DEPTH)])))
    begin = time.thread_time()
    at = ATTENTION_DEPTH + _TURN
    runner.execute(_plan((0, ATTENTION_DEPTH, tokens[ATTENTION_DEPTH:at])))
    for place in range(at, at + _ANSWER):
        runner.execute(_plan((0, place, tokens[place : place + 1])))
    return time.thread_time() - begin


def compare(logits: Result, recorded: npt.NDArray[Any]) -> float:
    """Cosine similarity of the checkpoint that differs most; -1 for logits that are not finite."""
    if logits.shape != recorded.shape or not np.isfinite(logits).all():
        return -1.0
    expected = recorded.astype(np.float32)
    norms = np.linalg.norm(logits, axis=1) * np.linalg.norm(expected, axis=1)
    similarity = (logits * expected).sum(axis=1) / np.maximum(norms, 1e-9)
    return float(similarity.min())


def main() -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m runtimes.machine.selftest_child")
    parser.add_argument("runtime", choices=sorted(MODULES))
    parser.add_argument("--safe", action="store_true", help="without llama.cpp's extra buffers")
    parser.add_argument("--record", action="store_true", help="store the logits as the right ones")
    options = parser.parse_args()
    _, answer = exchange()
    tested = backend(options.runtime)
    model = read_model(tested.selftest)
    runner = tested.open(model, exercise_settings(tested, not options.safe))
    logits = exercise(runner, model.vocab_size)
    runner.close()
    recorded = tested.selftest.with_name("logits.npy")
    if options.record:
        np.save(recorded, logits.astype(np.float16))
    similarity = compare(logits, np.load(recorded))
    devices = [asdict(one) for one in tested.devices()]
    ratio = attention_ratio(tested, model, options.safe)
    found = {"kernels": tested.kernels(), "devices": devices, "attention": ratio}
    answer({**found, "similarity": similarity})
    return 0


if __name__ == "__main__":
    sys.exit(main())
