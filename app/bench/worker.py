"""What the worker process costs: tokens a second and time to the first token, against the engine in
this process."""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from app.bench.harness import BenchOptions, BenchResult, Samples, in_turn
from app.bench.work import finished, greedy, loaded, random_prompts
from runtimes.api import EngineApi
from runtimes.request import Request

_PROMPT = 16  # tokens; what is compared is decoding and the way of the first token
_PROBES = 5  # requests for a single token; their median is a sample's


class _Sample(NamedTuple):
    """What a caller sees."""

    tps: float  # tokens of all rows over the time from the first submission to the last row's end
    ttft_s: float  # of a request for a single token, until its caller has it


def worker_overhead(path: Path, options: BenchOptions) -> BenchResult:
    """Decode greedily with 1 row and with ``options.rows``, in turn on both engines."""
    figures: dict[str, Any] = {}
    lines = []
    for rows in (1, options.rows):
        settings = options.settings(_PROMPT + options.decode_tokens + 1, rows=rows)
        with loaded(path, settings) as engine, loaded(path, settings, worker=True) as other:
            sides = {
                "here": partial(_sample, engine, options.decode_tokens),
                "worker": partial(_sample, other, options.decode_tokens),
            }
            taken = in_turn(sides, options.repeats)
        tps = {side: Samples(one.tps for one in samples) for side, samples in taken.items()}
        ttft = {side: Samples(one.ttft_s for one in samples) for side, samples in taken.items()}
        ratio = tps["worker"] / tps["here"]
        more = Samples(1e3 * (b - a) for a, b in zip(ttft["here"], ttft["worker"], strict=True))
        figures[str(rows)] = {
            "tps_ratio": ratio.median,
            "ttft_more_ms": more.median,
            **{f"{side}_tps": samples for side, samples in tps.items()},
            **{f"{side}_ttft_s": samples for side, samples in ttft.items()},
        }
        lines.append(
            f"{path.name}: {rows} row{'s' if rows > 1 else ''} through the worker: "
            f"{ratio.median - 1:+.1%} tok/s, {more:+.1f} ms to the first token"
        )
    return BenchResult({"decode_tokens": options.decode_tokens, "rows": figures}, lines)


def _sample(engine: EngineApi, tokens: int, seed: int) -> _Sample:
    rows = engine.slots
    prompts = random_prompts(engine, [_PROMPT] * (rows + _PROBES), seed)
    engine.trim()  # else a prompt's second use would skip its prefill
    first_s = Samples()
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
    return _Sample(rows * tokens / (end - begin), first_s.median)
