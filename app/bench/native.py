"""Rows in lockstep: the engine against `llama-batched-bench` of the same llama.cpp."""

from dataclasses import replace
from pathlib import Path

from app.bench.batched_bench import BatchedBench, run_batched_bench
from app.bench.options import BATCH, BenchOptions, Result, in_turn, median, rounded
from app.bench.tools import require_tool
from app.bench.work import (
    TOGETHER,
    Window,
    host_shares,
    loaded,
    lockstep,
    random_prompts,
    wall_tps,
)
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings

_LAYOUTS = {"split": False, "unified": True}
_DEFAULT = "split"  # RunnerSettings.unified_kv


def native(path: Path, options: BenchOptions) -> Result:
    """Both layouts of both sides in turn, ``options.repeats`` rounds."""
    program = require_tool(options.batched_bench, "--batched-bench", "llama-batched-bench")
    # One token more than is timed comes with the prefill.
    need = options.prompt_tokens + options.decode_tokens + 1
    # Every prompt in one step, on both sides: with one cache for all, rows would otherwise begin to
    # decode while others prefill, and end as much earlier.
    batch = max(BATCH, options.rows * options.prompt_tokens)
    settings = {
        name: replace(options.settings(need, unified=kvu), batch=batch)
        for name, kvu in _LAYOUTS.items()
    }
    ours: dict[str, list[Window]] = {name: [] for name in _LAYOUTS}
    theirs: dict[str, list[float]] = {name: [] for name in _LAYOUTS}
    for seed, (tool, layout) in in_turn(
        [(tool, layout) for layout in _LAYOUTS for tool in (False, True)], options.repeats
    ):
        if tool:
            line = run_batched_bench(
                program,
                path,
                settings[layout],
                prompt_tokens=options.prompt_tokens,
                decode_tokens=options.decode_tokens,
            )
            _require_same(line, settings[layout])
            theirs[layout].append(line.decode_tps)
            continue
        with loaded(path, settings[layout], TOGETHER) as engine:
            prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
            ours[layout].append(lockstep(engine, prompts, options.decode_tokens))
    return _result(options, settings[_DEFAULT], ours, theirs)


def _result(
    options: BenchOptions,
    settings: RunnerSettings,
    ours: dict[str, list[Window]],
    theirs: dict[str, list[float]],
) -> Result:
    """Decode tok/s of all rows; ratios of our better layout, and of the one that Ingot takes
    unasked, to the best of theirs.
    """
    our_tps = {name: wall_tps(windows) for name, windows in ours.items()}
    their_best = max(map(median, theirs.values()))
    best = max(map(median, our_tps.values())) / their_best
    default = median(our_tps[_DEFAULT]) / their_best
    # Of each round, whose runs lie within a minute: a machine that is faster now than ten minutes
    # ago changes both sides of it.
    rounds = [
        max(mine) / max(others)
        for mine, others in zip(
            zip(*our_tps.values(), strict=True), zip(*theirs.values(), strict=True), strict=True
        )
    ]
    figures = {
        "rows": settings.slots,
        "context": settings.context,
        "batch": settings.batch,
        "threads": settings.threads,
        "prompt_tokens": options.prompt_tokens,
        "decode_tokens": options.decode_tokens,
        "ingot": {
            name: {
                "decode_tps": rounded(our_tps[name]),
                "decode_tps_of_steps": rounded([window.step_tps for window in windows]),
                "rows_per_step": rounded([w.tokens / w.steps for w in windows]),
                "host_share": rounded(host_shares(windows)),
                "graphs_reused": [window.graphs_reused for window in windows],
                "steps": [window.steps for window in windows],
            }
            for name, windows in ours.items()
        },
        "llama_batched_bench": {name: rounded(samples) for name, samples in theirs.items()},
        "ratio_of_best": round(best, 4),
        "ratio_of_rounds": rounded(rounds),
        "ratio_of_default": round(default, 4),
    }
    lines = [
        f"{settings.slots} rows in lockstep, {options.prompt_tokens} prompt and "
        f"{options.decode_tokens} decoded tokens, {settings.threads} threads: decode tok/s",
        *(
            f"  ingot, {name}: {median(our_tps[name]):.1f} ({_spread(our_tps[name])}), "
            f"{100 * median(host_shares(windows)):.2f}% of it outside llama.cpp"
            for name, windows in ours.items()
        ),
        *(
            f"  llama-batched-bench, {name}: {median(samples):.1f} ({_spread(samples)})"
            for name, samples in theirs.items()
        ),
        f"  better of ours : best of theirs = {best:.3f}; "
        f"our default ({_DEFAULT}) : best of theirs = {default:.3f}; "
        f"median of the rounds' ratios {median(rounds):.3f} ({_spread(rounds, 3)})",
    ]
    return Result(figures, lines)


def _require_same(line: BatchedBench, settings: RunnerSettings) -> None:
    """A tool that took other settings than it was told would make the ratio meaningless."""
    have = (line.threads, line.cells, line.batch, line.ubatch, line.rows)
    cells = (settings.context or 0) * settings.slots
    want = (settings.threads, cells, settings.batch, settings.batch, settings.slots)
    if have != want:
        raise IngotError(
            "llama-batched-bench ran with other (threads, cells, batch, ubatch, rows) than asked: "
            f"{have} instead of {want}"
        )


def _spread(samples: list[float], digits: int = 1) -> str:
    return f"{min(samples):.{digits}f}-{max(samples):.{digits}f}"
