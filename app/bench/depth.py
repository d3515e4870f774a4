"""Behind long texts: a prompt, a turn and decode, against the tools of the same llama.cpp, with
their default kernel of attention ("auto") and without flash attention."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.harness import BenchOptions, BenchResult, Samples, in_turn, require_tool, run_tool
from app.bench.llama_server import IngotServer, LlamaServer, Server
from app.bench.native import batched_bench
from app.bench.speed import ROWS
from app.figures import aligned
from runtimes.errors import IngotError
from runtimes.models.registry import read_model
from runtimes.planner.measure import (
    DECODE_PROMPT,
    TURN_TOKENS,
    Workload,
    measure_depths,
    random_tokens,
)
from runtimes.settings import FlashAttention, RunnerSettings

Work = tuple[int, str]  # the depth, and what is done there
Speeds = dict[Work, float]  # tokens a second

_KERNELS: dict[str, FlashAttention] = {"": "auto", " -fa off": "off"}
_PREFILL, _TURN = "prefill", f"turn of {TURN_TOKENS}"


def native_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """The engine against `llama-bench`, and for several rows against `llama-batched-bench`."""
    single = require_tool(options.llama_bench, "--llama-bench", "llama-bench")
    several = require_tool(options.batched_bench, "--batched-bench", "llama-batched-bench")

    def ours(_: int) -> Speeds:
        work = _workload(options)
        settings = RunnerSettings(threads=options.cores, flash_attention=options.flash_attention)
        found: Speeds = {}
        for depth, speed in measure_depths(path, work, repeats=1, settings=settings).items():
            found |= {(depth, _PREFILL): speed.prefill_tps, (depth, _TURN): speed.turn_tps}
            found |= {(depth, _decode(rows)): tps for rows, tps in speed.decode_tps.items()}
        return found

    sides: dict[str, Callable[[int], Speeds]] = {"ingot": ours}
    for name, kernel in _KERNELS.items():
        sides[f"llama.cpp{name}"] = partial(_tools, single, several, path, options, kernel)
    return _result(options, in_turn(sides, options.repeats))


def server_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """`ingot serve` against `llama-server`, both by what a client waits for. Raises IngotError for
    answers that take no longer than their first tokens."""
    program = require_tool(options.llama_server, "--llama-server", "llama-server")
    work, vocabulary = _workload(options), read_model(path).vocab_size

    def prompt(server: Server, depth: int, tokens: int) -> float:
        """Tokens a second of a prompt, and of the token behind it."""
        (past,), own = random_tokens(vocabulary, 1, depth), random_tokens(vocabulary, 1, tokens)
        return tokens / _seconds(server, past, own, 1)

    def answers(server: Server, depth: int, rows: int) -> float:
        """Tokens a second of all rows, without the time to their first ones."""
        (past,), tokens = random_tokens(vocabulary, 1, depth), work.decode_tokens
        first, whole = (
            _seconds(server, past, random_tokens(vocabulary, rows, DECODE_PROMPT), made)
            for made in (1, tokens + 1)
        )
        if whole <= first:
            raise IngotError(f"{tokens} tokens are too few to be timed; --decode-tokens sets more")
        return rows * tokens / (whole - first)

    def speeds(start: Callable[[RunnerSettings], Server], _: int) -> Speeds:
        found: Speeds = {}
        for rows in work.rows:
            with start(options.settings(work.context, rows=rows)) as server:
                for depth in work.depths:
                    if rows == work.rows[0]:
                        found[depth, _PREFILL] = prompt(server, depth, work.prompt_tokens)
                        found[depth, _TURN] = prompt(server, depth, TURN_TOKENS)
                    found[depth, _decode(rows)] = answers(server, depth, rows)
        return found

    sides = {"ingot serve": partial(speeds, partial(IngotServer, path))}
    for name, kernel in _KERNELS.items():
        start = partial(LlamaServer, program, path, flash_attention=kernel)
        sides[f"llama-server{name}"] = partial(speeds, start)
    return _result(options, in_turn(sides, options.repeats))


def _workload(options: BenchOptions) -> Workload:
    return Workload(
        options.sizes or ROWS,
        options.prompt_tokens,
        options.decode_tokens,
        depths=options.depths or (0,),
    )


def _decode(rows: int) -> str:
    return f"decode, {rows} row{'s' if rows > 1 else ''}"


def _tools(
    single: Path, several: Path, path: Path, options: BenchOptions, kernel: str, _: int
) -> Speeds:
    """Of llama.cpp's own benchmarks with their defaults but for the threads."""
    work = _workload(options)
    command: list[object] = [single, "-m", path, "-t", options.cores, "-fa", kernel, "-r", 1]
    command += ["-p", f"{work.prompt_tokens},{TURN_TOKENS}", "-n", work.decode_tokens]
    command += ["-d", ",".join(map(str, work.depths)), "-o", "jsonl"]
    found: Speeds = {}
    for line in map(json.loads, run_tool(command).splitlines()):
        kinds = {_PREFILL: work.prompt_tokens, _TURN: TURN_TOKENS, _decode(1): 0}
        for kind, tokens in kinds.items():
            if line["n_prompt"] == tokens:
                found[line["n_depth"], kind] = line["avg_ts"]
    for rows in work.rows:
        for depth in work.depths if rows > 1 else ():
            prompt = max(depth, DECODE_PROMPT)
            cells = rows * (prompt + work.decode_tokens + 1)
            words: list[object] = [several, "-m", path, "-t", options.cores, "-tb", options.cores]
            # The prompt is read once, and copied to all rows.
            words += ["-pps", "-npp", prompt, "-ntg", work.decode_tokens, "-npl", rows, "-c", cells]
            found[depth, _decode(rows)] = batched_bench([*words, "-fa", kernel])["speed_tg"]
    return found


def _seconds(server: Server, past: list[int], rows: Sequence[list[int]], tokens: int) -> float:
    """Of answers of so many tokens, one to each row's own tokens behind ``past``, which was there
    before."""
    if past:
        server.complete([past] * len(rows), 1, len(rows))
    begin = time.perf_counter()
    server.complete([past + own for own in rows], tokens, len(rows))
    return time.perf_counter() - begin


def _result(options: BenchOptions, taken: Mapping[str, Sequence[Speeds]]) -> BenchResult:
    """``taken`` has our side first."""
    ours, *theirs = taken
    works = list(taken[ours][0])
    cells: list[dict[str, Any]] = []
    table = [["depth", "work", *taken, "ratio to the best"]]
    for depth, kind in sorted(works, key=lambda work: work[0]):
        speeds = {
            side: Samples(speed[depth, kind] for speed in rounds) for side, rounds in taken.items()
        }
        best = max((speeds[side] for side in theirs), key=lambda samples: samples.median)
        ratio = speeds[ours] / best
        cells.append({"depth": depth, "work": kind, "tps": speeds, "ratio": ratio})
        row = [f"{depth:,}", kind, *(f"{samples:,.1f}" for samples in speeds.values())]
        table.append([*row, f"{ratio:.2f} ({ratio.spread('.2f')})"])
    figures = {
        "threads": options.cores,
        "prompt_tokens": options.prompt_tokens,
        "decode_tokens": options.decode_tokens,
        "speeds": cells,
    }
    title = (
        f"tokens a second behind so many tokens (depth), {options.cores} threads; a prefill has"
        f" {options.prompt_tokens:,} tokens, and decoded are {options.decode_tokens:,} of each row"
    )
    return BenchResult(figures, [title, *aligned(table)])
