"""A running job at one moment: its figures, those of each engine, and of all engines together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from app import console
from app.batch.report.eta import Left, left_json
from app.batch.schedule.engines import VISIBLE
from app.batch.schedule.pool_engine import EngineState, PoolEngine
from app.figures import rate, rounded
from runtimes.engine.metrics import EngineStats, Percentiles
from runtimes.machine.gpus import GpuWatch, tokens_per_joule


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine; rates are tokens a second over the time that each took."""

    name: str
    where: str
    state: str
    slots: int
    running: int
    rows: int  # that it finished; failed ones and tokens are of these
    failed: int
    crashes: int  # deaths of its process
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_tps: float
    decode_tps: float
    decode_tps_now: float

    def as_json(self) -> dict[str, Any]:
        """For `--json` and `--report`."""
        return rounded(asdict(self), 1)

    def line(self) -> str:
        """For people, at the end."""
        times = "once" if self.crashes == 1 else f"{self.crashes} times"
        died = f", died {times}" if self.crashes else ""
        lost = ", left out since" if self.state == EngineState.LOST else ""
        where = f" ({self.where})" if self.where else ""
        return (
            f"{self.name}{where}: {self.rows:,} rows, {self.completion_tokens:,} answer tokens, "
            f"decode {rate(self.decode_tps)}{died}{lost}"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rates are tokens a second. The names and their order are those of a ``progress`` event."""

    rows: int
    done: int  # need nothing more
    cached: int  # of them: answered by an earlier run
    failed: int
    running: int
    slots: int
    elapsed_s: float
    left: Left | None  # None before anything can be said
    prefill_tps_now: float
    prefill_tps: float
    decode_tps_now: float
    decode_tps: float
    kv_tokens: int  # in the slots
    kv_capacity: int
    memory_bytes: int  # of all its processes
    draining: bool
    working: tuple[int, ...] = ()  # the indexes of the rows with a slot
    engines: tuple[EngineFigures, ...] = ()  # if there are several
    compiling: bool = False  # all else waits for that
    reading: int = 0  # of those running: their prompts are read

    @property
    def left_text(self) -> str:
        """For people."""
        if self.compiling:
            return console.COMPILING
        return "estimating the time" if self.left is None else str(self.left)

    @property
    def speeds(self) -> str:
        """Prefill and decode, now and overall."""
        return (
            f"prefill {rate(self.prefill_tps_now)} (all {rate(self.prefill_tps)}), "
            f"decode {rate(self.decode_tps_now)} (all {rate(self.decode_tps)})"
        )

    @property
    def occupancy(self) -> str:
        """Engines if there are several, slots, keys and values, memory."""
        used = 100 * self.kv_tokens / self.kv_capacity if self.kv_capacity else 0.0
        able = sum(engine.state == "ready" for engine in self.engines)
        engines = f"engines {able}/{len(self.engines)}, " if self.engines else ""
        return (
            f"{engines}slots {self.running}/{self.slots}, KV {self.kv_tokens:,} tokens "
            f"({used:.0f}%), memory {self.memory_bytes / 2**30:.2f} GiB"
        )

    def as_json(self) -> dict[str, Any]:
        """For an event."""
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name == "left":
                values |= left_json(value)
            elif name == "engines":
                values |= {"engines": [engine.as_json() for engine in value]} if value else {}
            elif name != "compiling":
                digits = 3 if name == "elapsed_s" else 1
                values[name] = round(value, digits) if isinstance(value, float) else value
        return values


def figures_of(
    members: Sequence[PoolEngine],
) -> tuple[EngineStats, tuple[EngineFigures, ...]]:
    """Of all engines together, and of each now if there are several."""
    stats = [member.engine.stats() for member in members]
    if len(members) == 1:
        return stats[0], ()
    return together(stats), tuple(map(_figures, members, stats))


def _figures(member: PoolEngine, stats: EngineStats) -> EngineFigures:
    counts = member.counts
    return EngineFigures(
        name=member.name,
        where=member.where(),
        state=member.state.value,
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
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(EngineStats)):
        each = [getattr(one, name) for one in stats]
        values[name] = (
            Percentiles() if isinstance(each[0], Percentiles) else sum(filter(None, each))
        )
    begun = [one.prompt_tokens + one.cached_tokens for one in stats]
    values |= {
        "context": min(one.context for one in stats),
        "prefill_s": _ratio(values["prompt_tokens"], sum(one.prefill_tps for one in stats)),
        "decode_s": _ratio(values["decode_tokens"], sum(one.decode_tps for one in stats)),
        "host_us_per_step": _ratio(
            sum(one.host_us_per_step * one.steps for one in stats), values["steps"]
        ),
        "prefix_hit_rate": _ratio(
            sum(one.prefix_hit_rate * rows for one, rows in zip(stats, begun, strict=True)),
            sum(begun),
        ),
    }
    if any(one.graphs_reused is None for one in stats):
        values["graphs_reused"] = None
    return EngineStats(**values)


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0


# The energy that GPUs took while a job's rows ran.


PERIOD_S = 1.0  # between two readings


@dataclass(frozen=True, slots=True)
class Energy:
    """Of all GPUs that the job could use, with what else they did."""

    joules: float
    watts: float  # the mean of all of them together
    tokens_per_joule: float | None  # of answers
    gpus: tuple[str, ...]
    measured: str  # how

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `--json` and `--report` have."""
        return cls(**{**values, "gpus": tuple(values["gpus"])})

    def line(self) -> str:
        """For people, at the end."""
        tokens = self.tokens_per_joule
        said = "" if tokens is None else f", {tokens:.3g} answer tokens per joule"
        return f"GPU energy: {self.joules:,.0f} J ({self.watts:,.0f} W){said}; {self.measured}"


def energy_of(watch: GpuWatch, tokens: int) -> Energy | None:
    """What was seen while so many answer tokens were made; None unless every GPU told its power to
    the end."""
    named = os.environ.get(VISIBLE, "").split(",")
    visible = {int(name) for name in named if name.strip().isdecimal()} or watch.uses.keys()
    uses = [use for index, use in watch.uses.items() if index in visible]
    joules = sum(use.joules for use in uses)
    if watch.reader.missing or not joules or any(use.watts is None for use in uses):
        return None
    return Energy(
        joules=joules,
        watts=sum(use.watts or 0.0 for use in uses),
        tokens_per_joule=tokens_per_joule(tokens, joules) or None,
        gpus=tuple(use.name for use in uses),
        measured=f"the power that NVIDIA's driver told of {len(uses)} GPU"
        f"{'s' if len(uses) > 1 else ''} every {PERIOD_S:g} s, with idle power and other programs'",
    )
