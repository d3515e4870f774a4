"""What each engine of a job has done, and the figures of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.batch.schedule.lane import Lane, LaneState
from app.figures import rate
from runtimes.engine.metrics import EngineStats, Percentiles


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine: ``rows`` that it finished, ``failed`` of them; tokens are of these rows; rates
    are tokens a second over the time that each took; ``crashes`` are deaths of its process."""

    name: str
    where: str
    state: str
    slots: int
    running: int
    rows: int
    failed: int
    crashes: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_tps: float
    decode_tps: float
    decode_tps_now: float

    def as_json(self) -> dict[str, Any]:
        """For `--json` and `--report`."""
        return {k: round(v, 1) if isinstance(v, float) else v for k, v in asdict(self).items()}

    def line(self) -> str:
        """For people, at the end."""
        times = "once" if self.crashes == 1 else f"{self.crashes} times"
        died = f", died {times}" if self.crashes else ""
        lost = ", left out since" if self.state == LaneState.LOST.value else ""
        where = f" ({self.where})" if self.where else ""
        return (
            f"{self.name}{where}: {self.rows:,} rows, {self.completion_tokens:,} answer tokens, "
            f"decode {rate(self.decode_tps)}{died}{lost}"
        )


def figures_of(lane: Lane, stats: EngineStats) -> EngineFigures:
    """The figures of one engine now."""
    counts = lane.counts
    return EngineFigures(
        name=lane.name,
        where=lane.where,
        state=lane.state.value,
        slots=stats.slots,
        running=counts.running,
        rows=counts.answered + counts.failed,
        failed=counts.failed,
        crashes=counts.crashes,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        completion_tokens=counts.completion_tokens,
        prefill_tps=stats.prefill_tps,
        decode_tps=stats.decode_tps,
        decode_tps_now=stats.decode_tps_now,
    )


def together(stats: Sequence[EngineStats]) -> EngineStats:
    """The figures of engines that run side by side: counts, and rates too, add up.

    ``prefill_s`` and ``decode_s`` are what makes the rates since the start the sum of the engines'
    own. Percentiles cannot be known from the engines'; they are left out.
    """
    if len(stats) == 1:
        return stats[0]

    def total(name: str) -> Any:
        return sum(getattr(one, name) for one in stats)

    steps, reused = total("steps"), [one.graphs_reused for one in stats]
    prompt, decoded = total("prompt_tokens"), total("decode_tokens")
    wanted = [one.prompt_tokens + one.cached_tokens for one in stats]
    return EngineStats(
        **{name: total(name) for name in _ADDED},
        context=min(one.context for one in stats),
        prompt_tokens=prompt,
        decode_tokens=decoded,
        prefill_s=_seconds(prompt, sum(one.prefill_tps for one in stats)),
        decode_s=_seconds(decoded, sum(one.decode_tps for one in stats)),
        host_us_per_step=_mean([one.host_us_per_step for one in stats], [s.steps for s in stats]),
        prefix_hit_rate=_mean([one.prefix_hit_rate for one in stats], wanted),
        graphs_reused=None if None in reused else sum(filter(None, reused)),
        steps=steps,
        ttft_s=Percentiles(),
        tpot_s=Percentiles(),
    )


_ADDED = (
    "slots queued running prefilling decoding cached_tokens completion_tokens prefill_tps_now "
    "decode_tps_now prefill_tps_10s decode_tps_10s kv_tokens kv_capacity prefix_bytes preemptions "
    "completions compiling"
).split()


def _seconds(tokens: int, per_second: float) -> float:
    return tokens / per_second if per_second > 0 else 0.0


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    whole = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / whole if whole else 0.0
