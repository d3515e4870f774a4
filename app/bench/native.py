"""Rows in lockstep: the engine against `llama-batched-bench` of the same llama.cpp."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.harness import (
    BATCH,
    LAYOUTS,
    BenchOptions,
    BenchResult,
    against,
    in_turn,
    require_tool,
    run_tool,
    tail,
    tool_arguments,
)
from app.bench.work import TOGETHER, Window, host_shares, loaded, lockstep_rows, wall_tps
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings

# Its log thread is not waited for when it ends, so that now and then a run prints nothing
# (common/log.cpp: "logs to be lost if not flushed before the program exits").
_TRIES = 20


def native(path: Path, options: BenchOptions) -> BenchResult:
    """Both layouts of both sides in turn: decode tok/s of all rows."""
    program = require_tool(options.batched_bench, "--batched-bench", "llama-batched-bench")
    # Every prompt in one step, on both sides: with one cache for all, rows would otherwise begin to
    # decode while others prefill, and end as much earlier.
    batch = max(BATCH, options.rows * options.prompt_tokens)
    sides: dict[tuple[str, str], Callable[[int], Window]] = {}
    for name, unified in LAYOUTS.items():
        settings = replace(options.settings(unified=unified), batch=batch)
        sides["ours", name] = partial(_ours, path, settings, options)
        sides["theirs", name] = partial(_theirs, program, path, settings, options)
    taken = in_turn(sides, options.repeats)
    ours = {name: taken["ours", name] for name in LAYOUTS}
    speeds = {
        who: {name: wall_tps(taken[who, name]) for name in LAYOUTS} for who in ("ours", "theirs")
    }
    ratios, verdict = against(speeds["ours"], speeds["theirs"])
    settings = options.settings()
    figures = {
        "rows": options.rows,
        "context": settings.context,
        "batch": batch,
        "threads": settings.threads,
        "prompt_tokens": options.prompt_tokens,
        "decode_tokens": options.decode_tokens,
        "ingot": {
            name: {
                "decode_tps": wall_tps(windows),
                "decode_tps_of_steps": [window.step_tps for window in windows],
                "rows_per_step": [window.tokens / window.steps for window in windows],
                "host_share": host_shares(windows),
                "graphs_reused": [window.graphs_reused for window in windows],
                "steps": [window.steps for window in windows],
            }
            for name, windows in ours.items()
        },
        "llama_batched_bench": speeds["theirs"],
        **ratios,
    }
    lines = [
        f"{options.rows} rows in lockstep, {options.prompt_tokens} prompt and "
        f"{options.decode_tokens} decoded tokens, {settings.threads} threads: decode tok/s"
    ]
    for name, windows in ours.items():
        tps = speeds["ours"][name]
        share = f"{100 * host_shares(windows).median:.2f}% of it outside llama.cpp"
        lines.append(f"  ingot, {name}: {tps:.1f} ({tps.spread('.1f')}), {share}")
    for name, tps in speeds["theirs"].items():
        lines.append(f"  llama-batched-bench, {name}: {tps:.1f} ({tps.spread('.1f')})")
    return BenchResult(figures, [*lines, verdict])


def _ours(path: Path, settings: RunnerSettings, options: BenchOptions, seed: int) -> Window:
    with loaded(path, settings, TOGETHER) as engine:
        return lockstep_rows(engine, options, seed)


def _theirs(
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
    have = [line[name] for name in ("n_threads", "n_kv_max", "n_batch", "n_ubatch", "pl")]
    cells = (settings.context or 0) * settings.slots
    want = [settings.threads, cells, settings.batch, settings.batch, settings.slots]
    if have != want:
        raise IngotError(
            "llama-batched-bench ran with other (threads, cells, batch, ubatch, rows) than asked: "
            f"{have} instead of {want}"
        )
    return Window.timed(line["tg"], line["t_tg"], rows=line["pl"])


def batched_bench(command: Sequence[object]) -> dict[str, Any]:
    """What a run of `llama-batched-bench` says, as ``parse``."""
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
