"""What rows of several LoRA adapters in one step cost beside rows of the model as it is."""

import random
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np

from app.bench.harness import BenchOptions, BenchResult, Samples, in_turn
from app.bench.work import (
    TOGETHER,
    Window,
    about,
    finished,
    greedy,
    loaded,
    lockstep_rows,
    random_prompts,
    wall_tps,
)
from runtimes.api import EngineApi
from runtimes.errors import RequestError
from runtimes.models.gguf import gguf_files, read_header
from runtimes.request import Request

_COUNTS = (1, 2, 4, 8)
_RANK = 16
_JOB = 4  # requests for each slot
_MATRICES = "attn_q attn_k attn_v attn_qkv attn_output ffn_gate ffn_up ffn_down".split()
_TEXT, _F32 = 8, 6  # types of GGUF's metadata
_ALIGNMENT = 32


def adapters(path: Path, options: BenchOptions) -> BenchResult:
    """Rows in lockstep, without adapters and dealt out to 1, 2, 4, 8 of them; then more requests
    than there are slots, without adapters and dealt out to all of them. Each pair in turn."""
    counts = [count for count in _COUNTS if count <= options.rows]
    need = options.prompt_tokens + 3 * options.decode_tokens // 2 + 2
    with (
        _random_adapters(path, counts[-1]) as files,
        loaded(path, options.settings(need), TOGETHER) as engine,
    ):
        sides = {
            count: partial(_rows_with, engine, options, files[:count]) for count in (0, *counts)
        }
        windows = in_turn(sides, options.repeats, warm_up=True)
        jobs = in_turn(
            {count: partial(_job, engine, options, files[:count]) for count in (0, counts[-1])},
            options.repeats,
        )
    base = wall_tps(windows[0])
    mixed = {count: wall_tps(windows[count]) for count in counts}
    ratios = {count: speeds / base for count, speeds in mixed.items()}
    alone, dealt = (Samples(taken) for taken in jobs.values())
    job = dealt / alone
    figures = {
        "rows": options.rows,
        "decode_tokens": options.decode_tokens,
        "rank": _RANK,
        "base_tps": base,
        "tps": {str(count): speeds for count, speeds in mixed.items()},
        "ratio": {str(count): ratio for count, ratio in ratios.items()},
        "job": {"requests": _JOB * options.rows, "base_tps": alone, "tps": dealt, "ratio": job},
    }
    lines = [f"{options.rows} rows: {base:.1f} tok/s without adapters (of rank {_RANK} below)"]
    lines += [
        f"  {count} adapter{'s' * (count > 1)}: {mixed[count]:.1f} tok/s, {ratio:.3f} of that"
        f" ({ratio.spread('.3f')})"
        for count, ratio in ratios.items()
    ]
    lines.append(
        f"{_JOB * options.rows} requests of about as many tokens: {alone:.1f} tok/s without, with"
        f" {counts[-1]} adapters {dealt:.1f} tok/s, {job:.3f} of that ({job.spread('.3f')})"
    )
    return BenchResult(figures, lines)


def _rows_with(
    engine: EngineApi, options: BenchOptions, files: Sequence[Path], seed: int
) -> Window:
    """Rows dealt out to these adapters."""
    return lockstep_rows(engine, options, seed, adapters=_load(engine, files))


def _job(engine: EngineApi, options: BenchOptions, files: Sequence[Path], seed: int) -> float:
    """Tokens a second, prefill included, of requests that wait for slots, dealt out to these
    adapters."""
    dice, names = random.Random(seed), _load(engine, files)
    count = _JOB * options.rows
    prompts = random_prompts(engine, [options.prompt_tokens] * count, seed)
    params = [greedy(about(options.decode_tokens, dice)) for _ in prompts]
    begin = time.perf_counter()
    done = finished(
        [
            engine.submit(Request(prompt, asked, adapter=name))
            for prompt, asked, name in zip(prompts, params, cycle(names or [None]), strict=False)
        ]
    )
    seconds = time.perf_counter() - begin
    return sum(one.usage.completion_tokens for one in done) / seconds


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
    tensors: list[tuple[str, np.ndarray]] = []
    for tensor in header.tensors:
        _, _, name = tensor.name.partition("blk.")
        if name.endswith(".weight") and name.split(".")[1] in _MATRICES and len(tensor.shape) == 2:
            columns, rows = tensor.shape
            for side, shape in (("a", (_RANK, columns)), ("b", (rows, _RANK))):
                values = dice.normal(0, 0.01, shape).astype("<f4")
                tensors.append((f"{tensor.name}.lora_{side}", values))
    pairs = [
        _text("general.type", "adapter"),
        _text("general.architecture", str(header.metadata["general.architecture"])),
        _text("adapter.type", "lora"),
        _string("adapter.lora.alpha") + struct.pack("<If", _F32, float(_RANK)),
    ]
    path.write_bytes(_gguf(pairs, tensors))
    return path


def _gguf(pairs: Sequence[bytes], tensors: Sequence[tuple[str, np.ndarray]]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    data = []
    at = 0
    for name, values in tensors:
        rows, columns = values.shape
        head += _string(name) + struct.pack("<IQQIQ", 2, columns, rows, 0, at)
        data.append(_padded(values.tobytes()))
        at += len(data[-1])
    return b"".join([_padded(head), *data])


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _text(key: str, value: str) -> bytes:
    return _string(key) + struct.pack("<I", _TEXT) + _string(value)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
