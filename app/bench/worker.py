"""What the worker process costs: tokens a second and time to the first token, against the engine in
this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import finished, greedy, loaded, random_prompts, warm_up
from runtimes.api import EngineApi
from runtimes.request import Request
from runtimes.worker.engine import WorkerEngine

_PROMPT = 16  # tokens; what is compared is decoding and the way of the first token
_PROBES = 5  # requests for a single token; their median is a sample's


@dataclass(frozen=True, slots=True)
class Sample:
    """What a caller sees."""

    tps: float  # tokens of all rows over the time from the first submission to the last row's end
    ttft_s: float  # of a request for a single token, until its caller has it


@dataclass(frozen=True, slots=True)
class RowsOverhead:
    """Both engines on the same rows; samples of the same index were taken side by side."""

    rows: int
    here: tuple[Sample, ...]
    worker: tuple[Sample, ...]

    @property
    def tps_ratio(self) -> float:
        """Tokens a second through the worker over those without; the median of the pairs."""
        return median([b.tps / a.tps for a, b in zip(self.here, self.worker, strict=True)])

    @property
    def ttft_more_ms(self) -> float:
        """Milliseconds that the first token comes later; the median of the pairs."""
        pairs = zip(self.here, self.worker, strict=True)
        return 1e3 * median([b.ttft_s - a.ttft_s for a, b in pairs])


@dataclass(frozen=True, slots=True)
class WorkerOverhead:
    """See ``RowsOverhead``; one for each number of rows."""

    name: str
    tokens: int
    by_rows: tuple[RowsOverhead, ...]

    def to_json(self) -> dict[str, Any]:
        """Every sample, and what follows from them."""
        return {
            "file": self.name,
            "decode_tokens": self.tokens,
            "rows": {
                str(one.rows): {
                    "tps_ratio": round(one.tps_ratio, 4),
                    "ttft_more_ms": round(one.ttft_more_ms, 3),
                    "here_tps": rounded([sample.tps for sample in one.here]),
                    "worker_tps": rounded([sample.tps for sample in one.worker]),
                    "here_ttft_s": rounded([sample.ttft_s for sample in one.here]),
                    "worker_ttft_s": rounded([sample.ttft_s for sample in one.worker]),
                }
                for one in self.by_rows
            },
        }

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.name}: {one.rows} row{'s' if one.rows > 1 else ''} through the worker: "
            f"{100 * (one.tps_ratio - 1):+.1f}% tok/s, "
            f"{one.ttft_more_ms:+.1f} ms to the first token"
            for one in self.by_rows
        ]


def worker_overhead(
    path: Path, options: BenchOptions, rows: Sequence[int] | None = None
) -> WorkerOverhead:
    """Decode greedily with 1 row and with ``options.rows`` (or ``rows``), in turn on both engines.

    Raises as ``Engine.load``; IngotError if a request fails.
    """
    results = []
    for count in rows or (1, options.rows):
        settings = options.settings(_PROMPT + options.decode_tokens + 1, rows=count)
        with loaded(path, settings) as here, WorkerEngine.load(path, settings) as worker:
            warm_up(worker)
            pairs = []
            for number in range(options.repeats):
                # Whoever comes first in a pair finds other caches; so each does in turn.
                order: list[EngineApi] = [here, worker]
                order = order[:: -1 if number % 2 else 1]
                taken = [_sample(engine, count, options.decode_tokens, number) for engine in order]
                pairs.append(taken[:: -1 if number % 2 else 1])
            results.append(
                RowsOverhead(count, tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
            )
    return WorkerOverhead(path.name, options.decode_tokens, tuple(results))


def _sample(engine: EngineApi, rows: int, tokens: int, seed: int) -> Sample:
    prompts = random_prompts(engine, [_PROMPT] * (rows + _PROBES), seed)
    engine.trim()  # else a prompt's second use would skip its prefill
    first_s = []
    for prompt in prompts[rows:]:
        begin = time.perf_counter()
        # Not a longer answer's first piece: a random model's first tokens may give no text.
        finished([engine.submit(Request(prompt, greedy(1)))])
        first_s.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    streams = [engine.submit(Request(prompt, greedy(tokens))) for prompt in prompts[:rows]]
    for stream in streams:
        for _ in stream:
            pass
    end = time.perf_counter()
    finished(streams)
    return Sample(rows * tokens / (end - begin), median(first_s))
