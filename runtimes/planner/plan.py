"""``Plan``: with which file and settings a model runs here, and why. Imports nothing native.

Workloads: ``chat`` is one conversation whose turn is 256 prompt tokens and 128 answered ones;
``batch`` is a file of rows, 128 tokens in and 128 out each, as many together as pays.

Profiles, as ``runtimes.planner.choose`` applies them:

- ``balanced``: the fastest for the workload; no more slots than bring 2%.
- ``latency``: the shortest turn of a row by itself, whatever the workload; prefill may keep
  decoding rows waiting for 50 ms at a time.
- ``throughput``: the most tokens a second of the workload; prompts go in at once.
- ``memory``: the smallest of those that reach half of the best speed, with keys and values in 8
  bits where that is possible; four slots at the most.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from runtimes.backend import RuntimeName
from runtimes.settings import KvType, RunnerSettings, SchedulerSettings

PlanWorkload = Literal["chat", "batch"]
Profile = Literal["latency", "balanced", "throughput", "memory"]
WORKLOADS: tuple[PlanWorkload, ...] = ("chat", "batch")
PROFILES: tuple[Profile, ...] = ("latency", "balanced", "throughput", "memory")

PROMPT_TOKENS: dict[PlanWorkload, int] = {"chat": 256, "batch": 128}
OUTPUT_TOKENS = 128
STALL_S: dict[Profile, float | None] = {
    "latency": 0.05,
    "balanced": 0.5,
    "throughput": None,
    "memory": 0.5,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens a second of one prompt's prefill, and of all rows that decode together by their
    number, each the median of several short samples. ``scatter`` is the widest spread of the
    samples of one figure, as a part of their median."""

    prefill_tps: float
    decode_tps: dict[int, float]
    scatter: float = 0.0

    def turn_s(self, workload: PlanWorkload = "chat") -> float:
        """Seconds of one row's prompt and answer with no other row beside it."""
        alone = self.decode_tps[min(self.decode_tps)] / min(self.decode_tps)
        return PROMPT_TOKENS[workload] / self.prefill_tps + OUTPUT_TOKENS / alone

    def job_tps(self, rows: int) -> float:
        """Prompt and output tokens a second of a long job with ``rows`` rows together."""
        prompt = PROMPT_TOKENS["batch"]
        seconds = prompt / self.prefill_tps + OUTPUT_TOKENS / self.decode_tps[rows]
        return (prompt + OUTPUT_TOKENS) / seconds


@dataclass(frozen=True, slots=True)
class Alternative:
    """What else was looked at: measured, or why it was not."""

    file: str
    runtime: RuntimeName
    threads: int
    unified_kv: bool
    kv_type: KvType
    gpu_layers: int
    device_sampling: bool = False
    figures: Figures | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that an engine is loaded with. ``memory`` is the estimate in bytes."""

    workload: PlanWorkload
    profile: Profile
    runtime: RuntimeName
    path: str
    threads: int
    slots: int
    context: int
    batch: int
    kv_type: KvType
    unified_kv: bool
    gpu_layers: int
    extra_buffers: bool
    memory: int
    figures: Figures
    device_sampling: bool = False
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = field(default=(), repr=False)

    def settings(self) -> RunnerSettings:
        """What the engine asks of the runner."""
        return RunnerSettings(
            slots=self.slots,
            context=self.context,
            batch=self.batch,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            extra_buffers=self.extra_buffers,
            unified_kv=self.unified_kv,
            kv_type=self.kv_type,
            device_sampling=self.device_sampling,
        )

    def scheduling(self) -> SchedulerSettings:
        """How the engine schedules: the profile says how long prefill may hold decoding up."""
        return replace(SchedulerSettings(), max_stall_s=STALL_S[self.profile])

    @property
    def name(self) -> str:
        """The file's or the folder's name."""
        return Path(self.path).name

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan again; raises KeyError, TypeError or ValueError for anything else."""
        values = dict(data)
        values["figures"] = _figures(values["figures"])
        values["reasons"] = tuple(str(reason) for reason in values["reasons"])
        values["alternatives"] = tuple(
            Alternative(**{**a, "figures": _figures(a["figures"]) if a["figures"] else None})
            for a in values["alternatives"]
        )
        return cls(**values)


def _figures(data: dict[str, Any]) -> Figures:
    # JSON has made the numbers of rows into text.
    decode = {int(rows): float(tps) for rows, tps in data["decode_tps"].items()}
    return Figures(float(data["prefill_tps"]), decode, float(data["scatter"]))
