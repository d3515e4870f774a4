"""Rows in lockstep: the engine against `llama-batched-bench` of the same llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.bench.batched_bench import BatchedBench, run_batched_bench
from app.bench.options import BATCH, BenchOptions, median, rounded
from app.bench.tools import require_tool
from app.bench.work import Window, loaded, lockstep, random_prompts
from runtimes.errors import IngotError
from runtimes.settings import RunnerSettings, SchedulerSettings

_LAYOUTS = {"split": False, "unified": True}
_DEFAULT = "split"  # RunnerSettings.unified_kv


@dataclass(frozen=True, slots=True)
class NativeResult:
    """Decode tok/s of all rows by cache layout, a sample a round."""

    settings: RunnerSettings
    prompt_tokens: int
    decode_tokens: int
    ours: dict[str, list[Window]]
    theirs: dict[str, list[float]]

    @property
    def our_tps(self) -> dict[str, float]:
        """Medians, by layout."""
        return {
            name: median([window.wall_tps for window in windows])
            for name, windows in self.ours.items()
        }

    @property
    def their_tps(self) -> dict[str, float]:
        """Medians."""
        return {name: median(samples) for name, samples in self.theirs.items()}

    @property
    def best_ratio(self) -> float:
        """Our better layout over the best of theirs."""
        return max(self.our_tps.values()) / max(self.their_tps.values())

    @property
    def round_ratios(self) -> list[float]:
        """The same of each round, whose runs lie within a minute: a machine that is faster now than
        ten minutes ago changes both sides of it.
        """
        return [
            max(windows[number].wall_tps for windows in self.ours.values())
            / max(samples[number] for samples in self.theirs.values())
            for number in range(len(self.theirs[_DEFAULT]))
        ]

    @property
    def default_ratio(self) -> float:
        """The layout that Ingot takes unasked over the best of theirs."""
        return self.our_tps[_DEFAULT] / max(self.their_tps.values())

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "rows": self.settings.slots,
            "context": self.settings.context,
            "batch": self.settings.batch,
            "threads": self.settings.threads,
            "prompt_tokens": self.prompt_tokens,
            "decode_tokens": self.decode_tokens,
            "ingot": {
                name: {
                    "decode_tps": rounded([window.wall_tps for window in windows]),
                    "decode_tps_of_steps": rounded([window.step_tps for window in windows]),
                    "rows_per_step": rounded([w.tokens / w.steps for w in windows]),
                    "host_share": rounded([window.host_share for window in windows]),
                    "graphs_reused": [window.graphs_reused for window in windows],
                    "steps": [window.steps for window in windows],
                }
                for name, windows in self.ours.items()
            },
            "llama_batched_bench": {n: rounded(samples) for n, samples in self.theirs.items()},
            "ratio_of_best": round(self.best_ratio, 4),
            "ratio_of_rounds": rounded(self.round_ratios),
            "ratio_of_default": round(self.default_ratio, 4),
        }

    def lines(self) -> list[str]:
        """A line for each side and setting, then the ratios."""
        text = [
            f"{self.settings.slots} rows in lockstep, {self.prompt_tokens} prompt and "
            f"{self.decode_tokens} decoded tokens, {self.settings.threads} threads: decode tok/s"
        ]
        for name, windows in self.ours.items():
            host = 100 * median([window.host_share for window in windows])
            text.append(
                f"  ingot, {name}: {self.our_tps[name]:.1f} "
                f"({_spread([w.wall_tps for w in windows])}), {host:.2f}% of it outside llama.cpp"
            )
        for name, samples in self.theirs.items():
            text.append(
                f"  llama-batched-bench, {name}: {self.their_tps[name]:.1f} ({_spread(samples)})"
            )
        text.append(
            f"  better of ours : best of theirs = {self.best_ratio:.3f}; "
            f"our default ({_DEFAULT}) : best of theirs = {self.default_ratio:.3f}; "
            f"median of the rounds' ratios {median(self.round_ratios):.3f} "
            f"({_spread(self.round_ratios, 3)})"
        )
        return text


def native(path: Path, options: BenchOptions) -> NativeResult:
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
    scheduling = SchedulerSettings(max_stall_s=None, prefix_cache=False)
    ours: dict[str, list[Window]] = {name: [] for name in _LAYOUTS}
    theirs: dict[str, list[float]] = {name: [] for name in _LAYOUTS}

    def run_ours(layout: str, seed: int) -> None:
        with loaded(path, settings[layout], scheduling) as engine:
            prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
            ours[layout].append(lockstep(engine, prompts, options.decode_tokens))

    def run_theirs(layout: str, _seed: int) -> None:
        line = run_batched_bench(
            program,
            path,
            settings[layout],
            prompt_tokens=options.prompt_tokens,
            decode_tokens=options.decode_tokens,
        )
        _require_same(line, settings[layout])
        theirs[layout].append(line.decode_tps)

    for seed in range(options.repeats):
        # Back and forth, so that a machine that slows down favours neither side.
        turns = [(run, layout) for layout in _LAYOUTS for run in (run_ours, run_theirs)]
        for run, layout in turns if seed % 2 == 0 else reversed(turns):
            run(layout, seed)
    return NativeResult(
        settings[_DEFAULT], options.prompt_tokens, options.decode_tokens, ours, theirs
    )


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
