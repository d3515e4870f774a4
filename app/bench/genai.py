"""An ONNX folder: one row against onnxruntime-genai, the engine's own share of a step, and memory.

All sides decode the same prompt for as many tokens, round by round in turn; onnxruntime-genai does
so in processes of its own, once with as many threads as the engine and once as it loads a folder
when it is not told how many.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import Window, loaded, lockstep, random_prompts
from runtimes.api import EngineApi
from runtimes.machine.linechild import LineChild
from runtimes.settings import SchedulerSettings

_SETTLED = 0.1  # of the steps, until buffers have grown to what the work needs

# Rows in lockstep; and kept prefixes would count as growth.
_TOGETHER = SchedulerSettings(max_stall_s=None, prefix_cache=False)


@dataclass(frozen=True, slots=True)
class GenaiResult:
    """Decoding, a sample a round: ``one`` and ``many`` rows of ours, ``theirs`` tokens a second on
    the same number of ``threads``, and ``untold`` on its own choice of them.

    ``growth_bytes`` is how much more memory was resident at the end of ``grown_steps`` decode steps
    than after the first tenth of them.
    """

    prompt_tokens: int
    decode_tokens: int
    threads: int
    rows: int
    one: list[Window]
    many: list[Window]
    theirs: list[float]
    untold: list[float]
    grown_steps: int
    growth_bytes: int

    @property
    def ratio(self) -> float:
        """Ours over theirs at one row and as many threads, the median of the rounds."""
        return self._ratio(self.theirs)

    @property
    def ratio_untold(self) -> float:
        """Ours over theirs at one row, theirs with its own choice of threads."""
        return self._ratio(self.untold)

    def _ratio(self, others: list[float]) -> float:
        rounds = zip(self.one, others, strict=True)
        return median([window.wall_tps / tps for window, tps in rounds])

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "decode_tokens": self.decode_tokens,
            "threads": self.threads,
            "rows": self.rows,
            "decode_tps_1_row": rounded([window.wall_tps for window in self.one]),
            "decode_tps_rows": rounded([window.wall_tps for window in self.many]),
            "onnxruntime_genai_decode_tps": rounded(self.theirs),
            "onnxruntime_genai_untold_decode_tps": rounded(self.untold),
            "ratio": round(self.ratio, 4),
            "ratio_untold": round(self.ratio_untold, 4),
            "host_share_1_row": rounded([window.host_share for window in self.one]),
            "host_share_rows": rounded([window.host_share for window in self.many]),
            "memory_steps": self.grown_steps,
            "memory_growth_bytes": self.growth_bytes,
        }

    def lines(self) -> list[str]:
        """A line for each question."""
        one, many = ([w.host_share for w in windows] for windows in (self.one, self.many))
        return [
            f"1 row, {self.threads} threads: {median([w.wall_tps for w in self.one]):.1f} tok/s, "
            f"onnxruntime-genai {median(self.theirs):.1f}: ratio {self.ratio:.2f}; "
            f"with the threads that it chooses itself {median(self.untold):.1f}: "
            f"ratio {self.ratio_untold:.2f}",
            f"the engine's own share of a decode step: {100 * median(one):.2f}% at 1 row, "
            f"{100 * median(many):.2f}% at {self.rows} rows",
            f"resident memory over {self.grown_steps:,} decode steps of {self.rows} rows: "
            f"{self.growth_bytes / 1e6:+.2f} MB",
        ]


def genai(path: Path, options: BenchOptions) -> GenaiResult:
    """Raises IngotError when onnxruntime-genai is not installed or cannot load the folder."""
    need = options.prompt_tokens + options.decode_tokens + 1
    one: list[Window] = []
    many: list[Window] = []
    theirs: list[float] = []
    untold: list[float] = []
    child, name = "app.bench.genai_child", "onnxruntime-genai"
    quiet = {"ORT_DISABLE_TELEMETRY": "1"}
    with (
        LineChild(child, path, options.cores, name=name, environment=quiet) as other,
        LineChild(child, path, 0, name=name, environment=quiet) as own_way,
        loaded(path, options.settings(need, rows=1), _TOGETHER) as engine,
    ):
        for process in (other, own_way):
            process.answer()
        for seed in range(-1, options.repeats):
            [prompt] = random_prompts(engine, [options.prompt_tokens], seed)
            work = {"prompt": prompt, "tokens": options.decode_tokens}
            seconds = [process.ask(work)["seconds"] for process in (other, own_way)]
            window = lockstep(engine, [prompt], options.decode_tokens)
            if seed >= 0:  # the first is a warm-up
                theirs.append(options.decode_tokens / seconds[0])
                untold.append(options.decode_tokens / seconds[1])
                one.append(window)
    with loaded(path, options.settings(need), _TOGETHER) as engine:
        for seed in range(options.repeats):
            many.append(_rows(engine, options, seed))
        steps, growth = _growth(engine, options)
    return GenaiResult(
        prompt_tokens=options.prompt_tokens,
        decode_tokens=options.decode_tokens,
        threads=options.cores,
        rows=options.rows,
        one=one,
        many=many,
        theirs=theirs,
        untold=untold,
        grown_steps=steps,
        growth_bytes=growth,
    )


def _rows(engine: EngineApi, options: BenchOptions, seed: int) -> Window:
    prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
    return lockstep(engine, prompts, options.decode_tokens)


def _growth(engine: EngineApi, options: BenchOptions) -> tuple[int, int]:
    """Decode steps made, and the bytes by which this process grew in them."""
    process = psutil.Process()
    start, steps, seed = 0, 0, options.repeats
    while steps < options.steps or not start:
        steps += _rows(engine, options, seed).steps
        seed += 1
        if not start and steps >= _SETTLED * options.steps:
            start = process.memory_info().rss
            steps = 0
    return steps, process.memory_info().rss - start
