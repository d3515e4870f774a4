"""Rows in lockstep: the engine against `llama-batched-bench` and onnxruntime-genai, within a JSON
schema, and with LoRA adapters."""

import json
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from app.bench.frame import (
    LAYOUTS,
    BenchResult,
    Samples,
    best_against,
    compared,
    in_turn,
    require_tool,
    run_tool,
    samples,
    tail,
    tool_arguments,
)
from app.bench.loops import Loop, native_loop
from app.bench.options import BATCH, BenchOptions
from app.bench.work import (
    TOGETHER,
    Window,
    about,
    greedy,
    host_share,
    loaded,
    lockstep_rows,
    random_prompts,
    timed_run,
    wall_tps,
)
from runtimes.api import EngineApi
from runtimes.errors import IngotError, RequestError
from runtimes.models.gguf import gguf_files, read_header
from runtimes.request import Constraint, SamplingParams
from runtimes.settings import RunnerSettings

# Its log thread is not waited for when it ends, so that now and then a run prints nothing
# (common/log.cpp: "logs to be lost if not flushed before the program exits").
_TRIES = 20


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


def batched_bench(command: Sequence[object]) -> dict[str, Any]:
    """Figures of a run of `llama-batched-bench`, as ``parse``."""
    for _ in range(_TRIES):
        if (output := run_tool([*command, "--output-format", "jsonl"])).strip():
            break
    return parse(output)


def parse(output: str) -> dict[str, Any]:
    """The figures in what `--output-format jsonl` prints: one line of JSON, with ``t_tg`` seconds
    of decode and ``speed_tg`` tokens a second. Raises IngotError if there are none."""
    found = [line for line in output.splitlines() if line.startswith('{"n_kv_max"')]
    if len(found) != 1:
        raise IngotError(
            f"llama-batched-bench gave {len(found)} results instead of one:\n{tail(output)}"
        )
    line: dict[str, Any] = json.loads(found[0])
    return line


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
        many = [lockstep_rows(engine, options, seed) for seed in range(options.repeats)]
        steps, growth = _growth(engine, options)
    tps = samples(one, wall_tps)
    ours, told, own_way = tps.values()
    shares = Samples(map(host_share, one["ingot"])), Samples(map(host_share, many))
    figures = {
        "decode_tps_1_row": ours,
        "onnxruntime_genai_decode_tps": told,
        "onnxruntime_genai_untold_decode_tps": own_way,
        "ratio": (ours / told).median,
        "host_share_1_row": shares[0],
        "host_share_rows": shares[1],
        "memory_steps": steps,
        "memory_growth_bytes": growth,
    }
    lines = [
        *compared(f"1 row, {options.cores} threads: decode tok/s", tps),
        f"the engine's own share of a decode step: {shares[0]:.2%} at 1 row, "
        f"{shares[1]:.2%} at {options.rows} rows",
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


# Objects without end, so that no row is done before the others: numbers, texts, choices.
_SCHEMA = {
    "type": "array",
    "minItems": 10_000,
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "kind": {"enum": ["first", "second", "third"]},
            "scores": {"type": "array", "items": {"type": "number"}, "minItems": 2},
        },
        "required": ["id", "name", "kind", "scores"],
        "additionalProperties": False,
    },
}


def constrained(path: Path, options: BenchOptions) -> BenchResult:
    """Rows free and within the schema in turn; the warm-up compiles the schema."""
    within = SamplingParams(constraint=Constraint("json_schema", json.dumps(_SCHEMA)))
    with loaded(path, options.settings(), TOGETHER) as engine:
        sides = {
            "free": partial(lockstep_rows, engine, options),
            "constrained": partial(lockstep_rows, engine, options, params=within),
        }
        taken = in_turn(sides, options.repeats, warm_up=True)
    tps, shares = samples(taken, wall_tps), samples(taken, host_share)
    cost = 1 - (tps["constrained"] / tps["free"]).median  # the share of the speed that is lost
    # How much more of a step is outside the native library: steadier than the speed.
    host_cost = shares["constrained"].median - shares["free"].median
    figures = {"rows": options.rows, **{f"{side}_tps": found for side, found in tps.items()}}
    lines = compared(f"{options.rows} rows: decode tok/s", tps)
    lines.append(
        f"  {cost:.1%} slower within a JSON schema; {host_cost:.2%} more of a step is outside the"
        " native library"
    )
    return BenchResult({**figures, "cost": cost, "host_cost": host_cost}, lines)


_COUNTS = (1, 2, 4, 8)
_RANK = 16
_JOB = 4  # requests for each slot
_MATRICES = "attn_q attn_k attn_v attn_qkv attn_output ffn_gate ffn_up ffn_down".split()
_TEXT, _F32 = 8, 6  # types of GGUF's metadata
_ALIGNMENT = 32


def adapters(path: Path, options: BenchOptions) -> BenchResult:
    """Rows without adapters and dealt out to 1, 2, 4, 8 of them; then more requests than there are
    slots, without adapters and dealt out to all of them. Each pair in turn."""
    counts = [count for count in _COUNTS if count <= options.rows]
    need = options.prompt_tokens + 3 * options.decode_tokens // 2 + 2
    with (
        _random_adapters(path, counts[-1]) as files,
        loaded(path, options.settings(need), TOGETHER) as engine,
    ):

        def rows(count: int, seed: int) -> Window:
            return lockstep_rows(engine, options, seed, adapters=_load(engine, files[:count]))

        def job(count: int, seed: int) -> float:
            """Tokens a second, prefill included, of requests that wait for slots."""
            dice, names = random.Random(seed), _load(engine, files[:count])
            prompts = random_prompts(engine, [options.prompt_tokens] * _JOB * options.rows, seed)
            params = [greedy(about(options.decode_tokens, dice)) for _ in prompts]
            seconds, done = timed_run(engine, prompts, params, names)
            return sum(one.usage.completion_tokens for one in done) / seconds

        sides = {count: partial(rows, count) for count in (0, *counts)}
        windows = in_turn(sides, options.repeats, warm_up=True)
        jobs = in_turn({n: partial(job, n) for n in (0, counts[-1])}, options.repeats)
    tps, job_tps = samples(windows, wall_tps), samples(jobs, float)
    alone, dealt = job_tps.values()
    many = _JOB * options.rows
    figures = {
        "rows": options.rows,
        "base_tps": tps[0],
        "tps": {str(count): tps[count] for count in counts},
        "ratio": {str(count): tps[count] / tps[0] for count in counts},
        "job": {"requests": many, "base_tps": alone, "tps": dealt, "ratio": dealt / alone},
    }
    title = f"{options.rows} rows by adapters, of rank {_RANK}: decode tok/s"
    lines = compared(title, {f"{count} adapters": found for count, found in tps.items()})
    title = f"{many} requests of about as many tokens, prefill included"
    lines += compared(title, {f"{count} adapters": found for count, found in job_tps.items()})
    return BenchResult(figures, lines)


def _load(engine: EngineApi, files: Sequence[Path]) -> list[str]:
    """Have these adapters loaded and no other: it might cost, too."""
    names = [file.stem for file in files]
    for name in engine.adapters - set(names):
        engine.unload_adapter(name)
    for file in files:
        if file.stem not in engine.adapters:
            engine.load_adapter(file.stem, file)
    return names


@contextmanager
def _random_adapters(model: Path, count: int) -> Iterator[list[Path]]:
    if model.is_dir():  # a graph does not say its matrices' names
        beside = gguf_files(model.parent)
        if not beside:
            raise RequestError(f"{model} has no GGUF file of the same model beside it")
        model = beside[0]
    with tempfile.TemporaryDirectory(prefix="ingot-adapters-") as folder:
        yield [random_adapter(model, Path(folder) / f"a{seed}.gguf", seed) for seed in range(count)]


def random_adapter(model: Path, path: Path, seed: int) -> Path:
    """Write an adapter of small random numbers for every matrix of the layers of a GGUF model."""
    header, dice = read_header(model), np.random.default_rng(seed)
    table, data, count = bytearray(), bytearray(), 0
    for tensor in header.tensors:
        _, _, name = tensor.name.partition("blk.")
        if name.endswith(".weight") and name.split(".")[1] in _MATRICES and len(tensor.shape) == 2:
            columns, rows = tensor.shape
            for side, shape in (("a", (_RANK, columns)), ("b", (rows, _RANK))):
                table += _string(f"{tensor.name}.lora_{side}")
                table += struct.pack("<IQQIQ", 2, *shape[::-1], 0, len(data))
                data += _padded(dice.normal(0, 0.01, shape).astype("<f4").tobytes())
                count += 1
    words = {
        "general.type": "adapter",
        "general.architecture": str(header.metadata["general.architecture"]),
        "adapter.type": "lora",
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, count, 1 + len(words))
    for key, value in words.items():
        head += _string(key) + struct.pack("<I", _TEXT) + _string(value)
    head += _string("adapter.lora.alpha") + struct.pack("<If", _F32, float(_RANK))
    path.write_bytes(_padded(head + table) + data)
    return path


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
