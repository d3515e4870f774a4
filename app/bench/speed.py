"""Prefill, a turn and batched decode behind short and long texts: of model files, and against the
tools of the same llama.cpp, with their default kernel of attention ("auto") and without flash
attention."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from app.bench.frame import BenchResult, in_turn, require_tool, run_tool, samples
from app.bench.lockstep import batched_bench
from app.bench.options import BenchOptions
from app.bench.server import IngotServer, LlamaServer, Server
from app.figures import aligned
from runtimes.errors import IngotError, RequestError
from runtimes.machine.hardware import memory_now
from runtimes.models.memory import largest_context
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import read_model
from runtimes.planner.measure import (
    DECODE_PROMPT,
    TURN_TOKENS,
    SpeedFigures,
    Workload,
    measure_depths,
    random_tokens,
)
from runtimes.settings import FlashAttention, RunnerSettings

_DEPTHS, _ROWS = (0, 1024, 4096), (1, 8)  # unasked


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """One file's figures by depth."""

    model: ModelFile
    figures: dict[int, SpeedFigures]


def measure_file(path: Path, options: BenchOptions) -> FileSpeed:
    """Each depth with each number of rows.

    Raises as ``measure_depths``; RequestError for a depth that the model's context has no room for.
    """
    model = read_model(path)
    settings = RunnerSettings(threads=options.threads, flash_attention=options.flash_attention)
    work = _workload(options, _DEPTHS)
    work = replace(work, depths=_with_room(model, work, settings, asked=bool(options.depths)))
    return FileSpeed(model, measure_depths(path, work, repeats=options.repeats, settings=settings))


def _workload(options: BenchOptions, depths: tuple[int, ...]) -> Workload:
    return Workload(
        options.sizes or _ROWS,
        options.prompt_tokens,
        options.decode_tokens,
        depths=options.depths or depths,
    )


def _with_room(
    model: ModelFile, work: Workload, settings: RunnerSettings, *, asked: bool
) -> tuple[int, ...]:
    """The depths, of those unasked the ones that the context and the memory have room for."""
    widest = replace(settings, slots=max(work.rows))
    most = model.context_length
    if not asked:
        most = min(most, largest_context(model, widest, memory_now()[1]))
    behind = replace(work, depths=(0,)).context
    found = tuple(depth for depth in work.depths if not depth or depth + behind <= most)
    if asked and found != work.depths:
        raise RequestError(
            f"--depth {work.depths[-1]:,}: {model.path.name} has a context of"
            f" {model.context_length:,} tokens, and a sample needs {behind:,} of them"
        )
    return found


def speed_report(files: Sequence[FileSpeed]) -> tuple[list[dict[str, Any]], list[str]]:
    """Figures of each file and depth for programs, and the table of all for people."""
    rows = sorted(next(iter(files[0].figures.values())).decode_tps)
    fewest, *more = rows
    head = ["file", "runtime", "MB", "depth", "prefill", f"turn of {TURN_TOKENS}"]
    table = [[*head, *map(_rows, rows), *(f"{n} : {fewest}" for n in more)]]
    report = []
    for file in files:
        model = file.model
        for number, (depth, figures) in enumerate(file.figures.items()):
            decode, scaling = figures.decode_tps, {n: figures.scaling(n) for n in rows}
            report.append(
                {
                    "file": model.path.name,
                    "runtime": model.runtime,
                    "bytes": model.nbytes,
                    "depth": depth,
                    "prefill_tps": figures.prefill_tps,
                    "turn_tps": figures.turn_tps,
                    "decode_tps": decode,
                    "decode_ratio": scaling,
                }
            )
            names = [model.path.name, model.runtime, f"{model.nbytes / 1e6:,.1f}"]
            numbers = [f"{depth:,}", f"{figures.prefill_tps:,.0f}", f"{figures.turn_tps:,.0f}"]
            numbers += [f"{decode[n]:,.1f}" for n in rows]
            numbers += [f"{scaling[n]:.2f}x" for n in more]
            table.append([*([""] * 3 if number else names), *numbers])
    title = "tokens a second behind so many tokens (depth): prefill, a turn, decode of all rows"
    return report, [title, *aligned(table)]


def _rows(number: int) -> str:
    return f"{number} row{'s' if number > 1 else ''}"


# Against llama.cpp's tools.

Work = tuple[int, str]  # the depth, and what is done there
Speeds = dict[Work, float]  # tokens a second

_KERNELS: dict[str, FlashAttention] = {"": "auto", " -fa off": "off"}
_PREFILL, _TURN = "prefill", f"turn of {TURN_TOKENS}"


def native_at_depths(path: Path, options: BenchOptions) -> BenchResult:
    """The engine against `llama-bench`, and for several rows against `llama-batched-bench`."""
    single = require_tool(options.llama_bench, "llama-bench")
    several = require_tool(options.batched_bench, "llama-batched-bench")
    work = _workload(options, (0,))

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
    work, vocabulary = _workload(options, (0,)), read_model(path).vocab_size

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
    return f"decode, {_rows(rows)}"


def _seconds(server: Server, past: list[int], rows: Sequence[list[int]], tokens: int) -> float:
    """Seconds of answers of so many tokens, one to each row's own tokens behind ``past``, which the
    server has read before."""
    if past:
        server.row_seconds([past] * len(rows), 1)
    return max(server.row_seconds([past + own for own in rows], tokens))


def _result(options: BenchOptions, taken: Mapping[str, Sequence[Speeds]]) -> BenchResult:
    """``taken`` has our side first."""
    ours, *theirs = taken
    cells: list[dict[str, Any]] = []
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
