"""What the worker process costs: tokens a second and time to the first token, against the engine in
this process."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, Result, in_turn, median, paired, rounded
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


def worker_overhead(path: Path, options: BenchOptions) -> Result:
    """Decode greedily with 1 row and with ``options.rows``, in turn on both engines.

    Raises as ``Engine.load``; IngotError if a request fails.
    """
    figures: dict[str, Any] = {}
    lines = []
    for rows in (1, options.rows):
        settings = options.settings(_PROMPT + options.decode_tokens + 1, rows=rows)
        here: list[Sample] = []
        worker: list[Sample] = []
        with loaded(path, settings) as engine, WorkerEngine.load(path, settings) as other:
            warm_up(other)
            sides: list[tuple[EngineApi, list[Sample]]] = [(engine, here), (other, worker)]
            for number, (side, samples) in in_turn(sides, options.repeats):
                samples.append(_sample(side, rows, options.decode_tokens, number))
        ratio = paired([one.tps for one in worker], [one.tps for one in here])
        more_ms = 1e3 * median(b.ttft_s - a.ttft_s for a, b in zip(here, worker, strict=True))
        figures[str(rows)] = {
            "tps_ratio": round(ratio, 4),
            "ttft_more_ms": round(more_ms, 3),
            "here_tps": rounded(sample.tps for sample in here),
            "worker_tps": rounded(sample.tps for sample in worker),
            "here_ttft_s": rounded(sample.ttft_s for sample in here),
            "worker_ttft_s": rounded(sample.ttft_s for sample in worker),
        }
        lines.append(
            f"{path.name}: {rows} row{'s' if rows > 1 else ''} through the worker: "
            f"{100 * (ratio - 1):+.1f}% tok/s, {more_ms:+.1f} ms to the first token"
        )
    return Result({"decode_tokens": options.decode_tokens, "rows": figures}, lines)


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
