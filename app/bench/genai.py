"""An ONNX folder: one row against onnxruntime-genai, the engine's own share of a step, and memory.

All sides decode the same prompt for as many tokens, round by round in turn; onnxruntime-genai does
so in processes of its own, once with as many threads as the engine and once as it loads a folder
when it is not told how many.
"""

from pathlib import Path

import psutil

from app.bench.options import BenchOptions, Result, median, paired, rounded
from app.bench.work import (
    TOGETHER,
    Window,
    host_shares,
    loaded,
    lockstep,
    random_prompts,
    wall_tps,
)
from runtimes.api import EngineApi
from runtimes.machine.linechild import LineChild

_SETTLED = 0.1  # of the steps, until buffers have grown to what the work needs


def genai(path: Path, options: BenchOptions) -> Result:
    """Raises IngotError when onnxruntime-genai is not installed or cannot load the folder."""
    need = options.prompt_tokens + options.decode_tokens + 1
    one: list[Window] = []
    theirs: list[float] = []  # tokens a second on as many threads
    untold: list[float] = []  # on its own choice of them
    child, name = "app.bench.genai_child", "onnxruntime-genai"
    quiet = {"ORT_DISABLE_TELEMETRY": "1"}
    with (
        LineChild(child, path, options.cores, name=name, environment=quiet) as other,
        LineChild(child, path, 0, name=name, environment=quiet) as own_way,
        loaded(path, options.settings(need, rows=1), TOGETHER) as engine,
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
    with loaded(path, options.settings(need), TOGETHER) as engine:
        many = [_rows(engine, options, seed) for seed in range(options.repeats)]
        steps, growth = _growth(engine, options)
    tps = wall_tps(one)
    ratio, ratio_untold = paired(tps, theirs), paired(tps, untold)
    figures = {
        "prompt_tokens": options.prompt_tokens,
        "decode_tokens": options.decode_tokens,
        "threads": options.cores,
        "rows": options.rows,
        "decode_tps_1_row": rounded(tps),
        "decode_tps_rows": rounded(wall_tps(many)),
        "onnxruntime_genai_decode_tps": rounded(theirs),
        "onnxruntime_genai_untold_decode_tps": rounded(untold),
        "ratio": round(ratio, 4),
        "ratio_untold": round(ratio_untold, 4),
        "host_share_1_row": rounded(host_shares(one)),
        "host_share_rows": rounded(host_shares(many)),
        "memory_steps": steps,
        "memory_growth_bytes": growth,
    }
    lines = [
        f"1 row, {options.cores} threads: {median(tps):.1f} tok/s, "
        f"onnxruntime-genai {median(theirs):.1f}: ratio {ratio:.2f}; with the threads that it "
        f"chooses itself {median(untold):.1f}: ratio {ratio_untold:.2f}",
        f"the engine's own share of a decode step: {100 * median(host_shares(one)):.2f}% at 1 row, "
        f"{100 * median(host_shares(many)):.2f}% at {options.rows} rows",
        f"resident memory over {steps:,} decode steps of {options.rows} rows: "
        f"{growth / 1e6:+.2f} MB",
    ]
    return Result(figures, lines)


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
