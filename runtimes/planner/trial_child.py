"""The part of a trial that may die: one file, loaded once, measured as often as it is asked.

    python -m runtimes.planner.trial_child MODEL SETTINGS

SETTINGS is the JSON of a RunnerSettings. Writes a line when it is loaded; then answers each line
``{"prompt": tokens, "rows": n, "depth": tokens}`` on stdin with the tokens a second of prefill and
decode behind ``depth`` tokens, and with the depth that was measured. With a prompt of 0 tokens
prefill is not timed. ``{"prompt": tokens, "piece": n}`` asks for one prefill in steps of n tokens.
"""

import json
import statistics
import sys
import time
from functools import cached_property

from runtimes.engine.loading import load_runner
from runtimes.errors import IngotError
from runtimes.machine.linechild import exchange
from runtimes.models.registry import read_model
from runtimes.planner.plan import DECODE_STEPS, SHORT_PROMPT, TRIAL_PROMPT, TRIAL_TOKENS
from runtimes.runner import Runner, SavedKv, StepRow, TopKLogits
from runtimes.settings import RunnerSettings

FILL_S = 8.0  # the most that filling a depth may take at the speed of a prompt in an empty cache
LEAST_DEPTH = 2 * SHORT_PROMPT  # that is filled whatever it takes: two points make a line
# A sample lasts this long, and until it has as many steps: its median then stands for the
# file, whatever else ran for a part of the time.
_DECODE_S, _LEAST_STEPS = 0.1, 5
_PREFILL_S = 0.05


def main(path: str, settings: str) -> int:
    """Command line of this module."""
    questions, answer = exchange()
    try:
        runner = load_runner(read_model(path), RunnerSettings(**json.loads(settings)))
    except IngotError as error:
        answer({"error": str(error)})
        return 0
    bench = _Bench(runner)
    bench.seconds(SHORT_PROMPT, 1, 0)  # a warm-up
    answer({})
    for asked in questions:
        prompt = asked["prompt"]
        if "piece" in asked:
            runner.kv.trim(0, 0)
            answer({"prefill_tps": prompt / prefill(runner, 0, prompt, piece=asked["piece"])})
        else:
            answer(bench.sample(prompt, asked["rows"], asked["depth"]))
    runner.close()
    return 0


def extrapolated(near: tuple[int, float], far: tuple[int, float], depth: int) -> float:
    """Seconds at ``depth``, on the straight line through two depths and their seconds: attention
    reads every key and value of the cache once. No faster than at the ``far`` one."""
    (start, start_s), (end, end_s) = near, far
    return end_s + max(0.0, end_s - start_s) * (depth - end) / (end - start)


def depth_to_fill(depth: int, room: int, prefill_tps: float) -> int:
    """``depth``, or the part of it that has room and is filled within FILL_S."""
    return min(depth, room, max(LEAST_DEPTH, int(FILL_S * prefill_tps)))


class _Bench:
    """A loaded runner, and the texts behind which its rows are measured.

    A text is prefilled once and then loaded into every row, which is as fast as memory is. Copies
    would share cells in a unified cache, and so be faster than real rows.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._texts: dict[int, SavedKv] = {}  # by length

    def sample(self, prompt: int, rows: int, depth: int) -> dict[str, float]:
        """Tokens a second at ``depth``, and how much of it was filled."""
        filled = self._depth_to_fill(depth)
        prefill_s, decode_s = self.seconds(prompt, rows, filled)
        if filled < depth:
            start_prefill_s, start_decode_s = self.seconds(prompt, rows, 0)
            decode_s = extrapolated((SHORT_PROMPT, start_decode_s), (filled, decode_s), depth)
            prefill_s = extrapolated((0, start_prefill_s), (filled, prefill_s), depth)
        speed = prompt / prefill_s if prompt else 0.0
        return {"prefill_tps": speed, "decode_tps": rows / decode_s, "depth": filled}

    def seconds(self, prompt: int, rows: int, depth: int) -> tuple[float, float]:
        """Prefill of one prompt by itself behind ``depth`` tokens; then a step of ``rows`` rows in
        lockstep behind as many, or behind a short prompt. The median prompt and step."""
        self._empty()
        prefills, steps = list[float](), list[float]()
        left = _PREFILL_S
        while prompt and left > 0:
            self._put(1, depth)
            prefills.append(prefill(self._runner, 0, prompt, depth))
            left -= prefills[-1]
        behind, left = max(depth, SHORT_PROMPT), _DECODE_S
        self._empty()
        while len(steps) < _LEAST_STEPS or left > 0:
            done = len(steps) % DECODE_STEPS
            if not done:
                self._put(rows, behind, again=bool(steps))
            steps.append(self._decode(rows, behind + done))
            left -= steps[-1]
        return statistics.median(prefills or [0.0]), statistics.median(steps)

    def _depth_to_fill(self, depth: int) -> int:
        if depth <= LEAST_DEPTH:
            return depth
        room = self._runner.capabilities.context - TRIAL_TOKENS
        return depth_to_fill(depth, room, self._start_tps)

    @cached_property
    def _start_tps(self) -> float:
        """Tokens a second of a prompt in an empty cache."""
        self._empty()
        return TRIAL_PROMPT / prefill(self._runner, 0, TRIAL_PROMPT)

    def _empty(self) -> None:
        for slot in range(self._runner.capabilities.slots):
            self._runner.kv.trim(slot, 0)

    def _put(self, rows: int, length: int, *, again: bool = False) -> None:
        """Make the first slots hold the text of this length, and nothing else; ``again`` where they
        hold it already, and more behind it."""
        kv = self._runner.kv
        if length and length not in self._texts:
            self._empty()
            prefill(self._runner, 0, length)
            self._texts[length] = kv.save(0)
        for slot in range(rows):
            if length and not (again and self._runner.capabilities.can_trim):
                kv.load(slot, self._texts[length], length)
            else:
                kv.trim(slot, length)

    def _decode(self, rows: int, position: int) -> float:
        """One greedy step of all rows, each with a token of its own as experts differ by them;
        seconds."""
        tokens = prompt_tokens(self._runner, rows)
        parts = [StepRow(s, position, (tokens[s],), 1, top_k_needed=1) for s in range(rows)]
        begin = time.perf_counter()
        found = self._runner.execute(parts)
        (found.values if isinstance(found, TopKLogits) else found).argmax(axis=1)
        return time.perf_counter() - begin


def prefill(
    runner: Runner, slot: int, length: int, start: int = 0, piece: int | None = None
) -> float:
    """Put a prompt into a slot behind its ``start`` tokens, ``piece`` tokens a step or as many as
    may be; seconds."""
    tokens = prompt_tokens(runner, length)
    batch = min(piece or runner.capabilities.batch, runner.capabilities.batch)
    begin = time.perf_counter()
    for at in range(0, length, batch):
        part, last = tokens[at : at + batch], at + batch >= length
        runner.execute((StepRow(slot, start + at, part, last),))
    return time.perf_counter() - begin


def prompt_tokens(runner: Runner, count: int) -> list[int]:
    """Ids from all over the vocabulary: neighbours would share the pages of few embeddings."""
    return [(i * 7919 + 11) % runner.capabilities.vocab_size for i in range(count)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
