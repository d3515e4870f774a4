"""The engine against other programs: rows in lockstep beside `llama-batched-bench` and
onnxruntime-genai, prompts to their end beside `llama-server`, and both behind long texts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import psutil

from app.bench.frame import (
    LAYOUTS,
    TOGETHER,
    UNBOUNDED,
    BenchResult,
    Figures,
    Samples,
    Window,
    batched_bench,
    bench_prompts,
    best_against,
    compared,
    greedy,
    host_share,
    in_turn,
    loaded,
    lockstep_rows,
    random_prompts,
    require_tool,
    run_tool,
    samples,
    timed_run,
    tool_arguments,
    wall_tps,
)
from app.bench.loops import Loop, native_loop
from app.bench.options import BATCH, BenchOptions
from app.bench.server import IngotServer, LlamaServer, Server
from app.bench.speed import rows_of, workload
from app.figures import aligned
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.models.registry import read_model
from runtimes.planner.measure import DECODE_PROMPT, TURN_TOKENS, measure_depths, random_tokens
from runtimes.settings import FlashAttention, RunnerSettings


def native(path: Path, options: BenchOptions) -> BenchResult:
    """Decode tok/s of all rows, against `llama-batched-bench` of the same llama.cpp: both layouts
    of both sides in turn."""
    program = require_tool(options.batched_bench, "llama-batched-bench")
    # Every prompt in one step, on both sides: with one cache for all, rows would otherwise begin to
    # decode while others prefill, and end as much earlier.
    batch = max(BATCH, options.rows * options.prompt_tokens)
    sides: dict[tuple[str, str], Callable[[int], Window]] = {}
    for name, unified in LAYOUTS.items():
        settings = replace(options.settings(unified=unified), batch=batch)
        sides["ingot", name] = partial(_lockstep_alone, path, settings, options)
        sides["llama-batched-bench", name] = partial(_batched, program, path, settings, options)
    taken = in_turn(sides, options.repeats)
    tps, shares = samples(taken, wall_tps), samples(taken, host_share)
    ours = {
        name: {"decode_tps": tps["ingot", name], "host_share": shares["ingot", name]}
        for name in LAYOUTS
    }
    theirs = {name: tps["llama-batched-bench", name] for name in LAYOUTS}
    ratio = best_against((tps["ingot", name] for name in LAYOUTS), theirs.values())
    figures = {"rows": options.rows, "threads": options.cores, "ingot": ours}
    lines = compared(
        f"{options.rows} rows in lockstep, {options.cores} threads: decode tok/s",
        {", ".join(side): found for side, found in tps.items()},
    )
    outside = (f"{one['host_share']:.2%} ({name})" for name, one in ours.items())
    lines.append(f"  of a step of ours outside llama.cpp: {', '.join(outside)}")
    lines.append(f"  the best of ours : the best of theirs = {ratio.told('.3f')}")
    return BenchResult({**figures, "llama_batched_bench": theirs, "ratio_of_rounds": ratio}, lines)


def _lockstep_alone(
    path: Path, settings: RunnerSettings, options: BenchOptions, seed: int
) -> Window:
    with loaded(path, settings, TOGETHER) as engine:
        return lockstep_rows(engine, options, seed)


def _batched(
    program: Path, path: Path, settings: RunnerSettings, options: BenchOptions, _: int
) -> Window:
    """Raises IngotError with the tool's last lines when it fails, or ran with other settings."""
    # Its default, written out so that it stays; ours may be another kernel.
    words = ("-fa", "auto", "-npp", options.prompt_tokens, "-ntg", options.decode_tokens)
    command = tool_arguments(program, path, settings)
    command += map(str, (*words, "-npl", settings.slots))
    command += ["-kvu"] * settings.unified_kv
    line = batched_bench(command)
    # A tool that took other settings than it was told would make the ratio meaningless.
    cells = (settings.context or 0) * settings.slots
    want = {"n_threads": settings.threads, "n_kv_max": cells, "pl": settings.slots}
    want |= dict.fromkeys(("n_batch", "n_ubatch"), settings.batch)
    if wrong := {name: line[name] for name, value in want.items() if line[name] != value}:
        raise IngotError(f"llama-batched-bench ran with {wrong} instead of what was asked: {want}")
    return Window.timed(line["tg"], line["t_tg"], rows=line["pl"])


_SETTLED = 0.1  # of the steps, until buffers have grown to what the work needs


def genai(path: Path, options: BenchOptions) -> BenchResult:
    """An ONNX folder: one row against onnxruntime-genai, the engine's own share of a step, memory.

    All sides decode the same prompt for as many tokens; onnxruntime-genai does so in processes of
    its own, once with as many threads as the engine and once as it loads a folder when it is not
    told how many. Raises IngotError when it is not installed or cannot load the folder.
    """
    library = "onnxruntime-genai"
    with (
        native_loop(library, path, options.cores) as as_many_threads,
        native_loop(library, path, 0) as untold,
        loaded(path, options.settings(rows=1), TOGETHER) as engine,
    ):

        def theirs(loop: Loop, seed: int) -> Window:
            prompts = random_prompts(engine, [options.prompt_tokens], seed)
            return Window.timed(options.decode_tokens, loop(prompts, options.decode_tokens))

        sides = {
            "ingot": partial(lockstep_rows, engine, options),
            "onnxruntime-genai, as many threads": partial(theirs, as_many_threads),
            "as it loads the folder": partial(theirs, untold),
        }
        one = in_turn(sides, options.repeats, warm_up=True)
    with loaded(path, options.settings(), TOGETHER) as engine:
        steps, growth = _growth(engine, options)
    tps = samples(one, wall_tps)
    ours, told, own_way = tps.values()
    share = Samples(map(host_share, one["ingot"]))
    figures = {
        "decode_tps_1_row": ours,
        "onnxruntime_genai_decode_tps": told,
        "onnxruntime_genai_untold_decode_tps": own_way,
        "ratio": (ours / told).median,
        "host_share_1_row": share,
        "memory_steps": steps,
        "memory_growth_bytes": growth,
    }
    lines = [
        *compared(f"1 row, {options.cores} threads: decode tok/s", tps),
        f"the engine's own share of a decode step: {share:.2%}",
        f"resident memory over {steps:,} decode steps of {options.rows} rows: "
        f"{growth / 1e6:+.2f} MB",
    ]
    return BenchResult(figures, lines)


def _growth(engine: EngineApi, options: BenchOptions) -> tuple[int, int]:
    """Decode steps made, and the bytes by which this process grew in them."""
    process = psutil.Process()
    start, steps, seed = 0, 0, options.repeats
    while steps < options.steps or not start:
        steps += lockstep_rows(engine, options, seed).steps
        seed += 1
        if not start and steps >= _SETTLED * options.steps:
            start = process.memory_info().rss
            steps = 0
    return steps, process.memory_info().rss - start


# Prompts to their end: the engine, alone in a worker process and behind `ingot serve`, against
# `llama-server`. Everybody starts afresh each round, so that no round finds the prompts of the one
# before in a cache.


def server(path: Path, options: BenchOptions) -> BenchResult:
    """Every side in turn: generated tok/s end to end."""
    program = require_tool(options.llama_server, "llama-server")
    prompts = bench_prompts(path, options)
    need = max(map(len, prompts)) + options.decode_tokens + 1
    split = options.settings(need)

    def engine(unified: bool, _: int) -> float:
        params = [greedy(options.decode_tokens)] * len(prompts)
        settings = options.settings(need, unified=unified)
        with loaded(path, settings, UNBOUNDED, worker=True) as engine:
            return timed_run(engine, prompts, params)[0]

    def over_http(start: Callable[[], Server], _: int) -> float:
        with start() as own:
            return own.seconds(prompts, options.decode_tokens)

    llama, serve, layouts = LlamaServer.name, IngotServer.name, [f"ingot, {one}" for one in LAYOUTS]
    sides: dict[str, Callable[[int], float]] = {
        llama: partial(over_http, partial(LlamaServer, program, path, split)),
        serve: partial(over_http, partial(IngotServer, path, split)),
    }
    sides |= zip(layouts, (partial(engine, unified) for unified in LAYOUTS.values()), strict=True)
    taken = in_turn(sides, options.repeats)
    made = options.decode_tokens * len(prompts)
    seconds, tps = samples(taken, float), samples(taken, lambda took: made / took)
    ratio = best_against((tps[side] for side in layouts), [tps[llama]])
    to_engine = (tps[serve] / tps[layouts[0]]).median
    figures = {
        "requests": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "completion_tokens": made,
        "ingot_seconds": {name: seconds[side] for name, side in zip(LAYOUTS, layouts, strict=True)},
        "ingot_serve_seconds": seconds[serve],
        "llama_server_seconds": seconds[llama],
        "serve_to_engine": to_engine,
        "ratio_of_rounds": ratio,
    }
    title = (
        f"{len(prompts)} prompts of {figures['prompt_tokens']} tokens in all, {made} generated,"
        f" {options.rows} slots of {split.context}: tok/s end to end"
    )
    lines = compared(title, tps)
    lines += [f"  {serve} has {to_engine:.3f} of the engine's tok/s alone"]
    lines += [f"  the best of ours : the best of theirs = {ratio.told('.3f')}"]
    return BenchResult(figures, lines)


# Behind long texts, with llama.cpp's default kernel of attention and without flash attention.

Work = tuple[int, str]  # the depth, and what is done there
Speeds = dict[Work, float]  # tokens a second

_KERNELS: dict[str, FlashAttention] = {"": "auto", " -fa off": "off"}
_PREFILL, _TURN = "prefill", f"turn of {TURN_TOKENS}"


def native_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """The engine against `llama-bench`, and for several rows against `llama-batched-bench`."""
    single = require_tool(options.llama_bench, "llama-bench")
    several = require_tool(options.batched_bench, "llama-batched-bench")
    work = workload(options, (0,))

    def ours(_: int) -> Speeds:
        settings = RunnerSettings(threads=options.cores, flash_attention=options.flash_attention)
        found: Speeds = {}
        for depth, speed in measure_depths(path, work, repeats=1, settings=settings).items():
            found |= {(depth, _PREFILL): speed.prefill_tps, (depth, _TURN): speed.turn_tps}
            found |= {(depth, _decode(rows)): tps for rows, tps in speed.decode_tps.items()}
        return found

    def theirs(kernel: FlashAttention, _: int) -> Speeds:
        """Speeds of llama.cpp's own benchmarks with their defaults but for the threads."""
        threads, tokens = options.cores, work.decode_tokens
        command: list[object] = [single, "-m", path, "-t", threads, "-fa", kernel, "-r", 1]
        command += ["-p", f"{work.prompt_tokens},{TURN_TOKENS}", "-n", tokens]
        command += ["-d", ",".join(map(str, work.depths)), "-o", "jsonl"]
        found: Speeds = {}
        for line in map(json.loads, run_tool(command).splitlines()):
            kinds = {_PREFILL: work.prompt_tokens, _TURN: TURN_TOKENS, _decode(1): 0}
            for kind, prompt in kinds.items():
                if line["n_prompt"] == prompt:
                    found[line["n_depth"], kind] = line["avg_ts"]
        for rows in work.rows:
            for depth in work.depths if rows > 1 else ():
                prompt = max(depth, DECODE_PROMPT)
                words: list[object] = [several, "-m", path, "-t", threads, "-tb", threads]
                # The prompt is read once, and copied to all rows.
                words += ["-pps", "-npp", prompt, "-ntg", tokens, "-npl", rows]
                words += ["-c", rows * (prompt + tokens + 1), "-fa", kernel]
                found[depth, _decode(rows)] = batched_bench(words)["speed_tg"]
        return found

    sides: dict[str, Callable[[int], Speeds]] = {"ingot": ours}
    for name, kernel in _KERNELS.items():
        sides[f"llama.cpp{name}"] = partial(theirs, kernel)
    return _result(options, in_turn(sides, options.repeats))


def server_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """`ingot serve` against `llama-server`, both by what a client waits for. Raises IngotError for
    answers that take no longer than their first tokens."""
    program = require_tool(options.llama_server, "llama-server")
    work, vocabulary = workload(options, (0,)), read_model(path).vocab_size

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

    sides = {IngotServer.name: partial(speeds, partial(IngotServer, path))}
    for name, kernel in _KERNELS.items():
        start = partial(LlamaServer, program, path, flash_attention=kernel)
        sides[f"{LlamaServer.name}{name}"] = partial(speeds, start)
    return _result(options, in_turn(sides, options.repeats))


def _decode(rows: int) -> str:
    return f"decode, {rows_of(rows)}"


def _seconds(server: Server, past: list[int], rows: list[list[int]], tokens: int) -> float:
    """Seconds of answers of so many tokens, one to each row's own tokens behind ``past``, which the
    server has read before."""
    if past:
        server.row_seconds([past] * len(rows), 1)
    return max(server.row_seconds([past + own for own in rows], tokens))


def _result(options: BenchOptions, taken: Mapping[str, Sequence[Speeds]]) -> BenchResult:
    """``taken`` has our side first."""
    ours, *theirs = taken
    cells: list[Figures] = []
    table = [["depth", "work", *taken, "ratio to the best"]]
    for work in sorted(taken[ours][0], key=lambda work: work[0]):
        speeds = samples(taken, itemgetter(work))
        best = max((speeds[side] for side in theirs), key=lambda samples: samples.median)
        ratio = speeds[ours] / best
        depth, kind = work
        cells.append({"depth": depth, "work": kind, "tps": speeds, "ratio": ratio})
        row = [f"{depth:,}", kind, *(f"{tps:,.1f}" for tps in speeds.values())]
        table.append([*row, ratio.told(".2f")])
    title = (
        f"tokens a second behind so many tokens (depth), {options.cores} threads; a prefill has"
        f" {options.prompt_tokens:,} tokens, and decoded are {options.decode_tokens:,} of each row"
    )
    return BenchResult({"speeds": cells}, [title, *aligned(table)])
