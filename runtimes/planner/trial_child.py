"""The part of a trial that may die: one file, loaded once, measured as often as it is asked.

    python -m runtimes.planner.trial_child MODEL SETTINGS

SETTINGS is the JSON of a RunnerSettings. Writes a line when it is loaded; then answers each line
``{"prompt": tokens, "rows": n}`` on stdin with the tokens a second of prefill and decode. With a
prompt of 0 tokens prefill is not timed. ``{"prompt": tokens, "piece": n}`` asks for one prefill in
steps of n tokens.
"""

import json
import statistics
import sys
import time

from runtimes.engine.loading import load_runner
from runtimes.errors import IngotError
from runtimes.machine.linechild import exchange
from runtimes.models.modelfile import ModelFile
from runtimes.runner import Runner, StepPlan, StepRow, TopKLogits
from runtimes.settings import RunnerSettings

SHORT_PROMPT = 16  # tokens behind which rows decode
DECODE_STEPS = 24  # before the rows start again behind their prompts
# A sample lasts this long, and until it has as many steps: its median then stands for the
# file, whatever else ran for a part of the time.
_DECODE_S, _LEAST_STEPS = 0.1, 5
_PREFILL_S, _LEAST_PREFILLS = 0.05, 1


def main(path: str, settings: str) -> int:
    """Command line of this module."""
    questions, answer = exchange()
    try:
        runner, _ = load_runner(ModelFile.read(path), RunnerSettings(**json.loads(settings)))
    except IngotError as error:
        answer({"error": str(error)})
        return 0
    _sample(runner, SHORT_PROMPT, 1)  # a warm-up
    answer({})
    for asked in questions:
        prompt = asked["prompt"]
        if "piece" in asked:
            runner.kv.trim(0, 0)
            answer({"prefill_tps": prompt / prefill(runner, 0, prompt, asked["piece"])})
        else:
            prefill_tps, decode_tps = _sample(runner, prompt, asked["rows"])
            answer({"prefill_tps": prefill_tps, "decode_tps": decode_tps})
    runner.close()
    return 0


def _sample(runner: Runner, prompt: int, rows: int) -> tuple[float | None, float]:
    """Prefill of one prompt by itself; then ``rows`` rows in lockstep behind short prompts.

    Tokens a second by the median prompt and the median step.
    """
    for slot in range(runner.capabilities.slots):
        runner.kv.trim(slot, 0)
    prefills: list[float] = []
    while prompt and (len(prefills) < _LEAST_PREFILLS or sum(prefills) < _PREFILL_S):
        prefills.append(prefill(runner, 0, prompt))
        runner.kv.trim(0, 0)
    _fill(runner, rows)
    steps: list[float] = []
    while len(steps) < _LEAST_STEPS or sum(steps) < _DECODE_S:
        if steps and len(steps) % DECODE_STEPS == 0:
            _rewind(runner, rows)
        steps.append(_decode(runner, rows, SHORT_PROMPT + len(steps) % DECODE_STEPS))
    speed = prompt / statistics.median(prefills) if prefills else None
    return speed, rows / statistics.median(steps)


def _rewind(runner: Runner, rows: int) -> None:
    left = SHORT_PROMPT if runner.capabilities.can_trim else 0
    for slot in range(rows):
        runner.kv.trim(slot, left)
    if not left:
        _fill(runner, rows)


def _decode(runner: Runner, rows: int, position: int) -> float:
    """One greedy step of all rows; seconds."""
    begin = time.perf_counter()
    plan = StepPlan(tuple(StepRow(slot, position, (5,), 1, top_k_needed=1) for slot in range(rows)))
    found = runner.execute(plan)
    (found.values if isinstance(found, TopKLogits) else found).argmax(axis=1)
    return time.perf_counter() - begin


def _fill(runner: Runner, rows: int) -> None:
    """A short prompt in every row. Each its own in a shared cache, where copies would share cells
    and so be faster than real rows."""
    caps = runner.capabilities
    if not caps.mixed_batch:
        prefill(runner, 0, SHORT_PROMPT)
        for slot in range(1, rows):
            runner.kv.copy(0, slot, SHORT_PROMPT)
        return
    together = max(1, caps.batch // SHORT_PROMPT)
    for first in range(0, rows, together):
        slots = range(first, min(rows, first + together))
        parts = (StepRow(s, 0, prompt_tokens(runner, SHORT_PROMPT, s), 0) for s in slots)
        runner.execute(StepPlan(tuple(parts)))


def prefill(runner: Runner, slot: int, length: int, piece: int | None = None) -> float:
    """Put a prompt into a slot, ``piece`` tokens a step or as many as may be; seconds."""
    tokens = prompt_tokens(runner, length)
    batch = min(piece or runner.capabilities.batch, runner.capabilities.batch)
    begin = time.perf_counter()
    for at in range(0, length, batch):
        runner.execute(
            StepPlan((StepRow(slot, at, tokens[at : at + batch], at + batch >= length),))
        )
    return time.perf_counter() - begin


def prompt_tokens(runner: Runner, count: int, salt: int = 0) -> list[int]:
    """Ids from all over the vocabulary: neighbours would share the pages of few embeddings."""
    return [(i * 7919 + 31 * salt + 11) % runner.capabilities.vocab_size for i in range(count)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
