"""``Plan``: with which file and settings a model runs here, and why. Imports nothing native.

Workloads: ``chat`` is one conversation whose turn is 256 prompt tokens and 128 answered ones;
``batch`` is a file of rows, 128 tokens in and 128 out each, as many together as pays. All of them
stand behind the plan's depth: the tokens that a row's KV cache holds already. A plan's speeds hold
for this depth alone, since attention reads every key and value of the cache in every step.

Profiles, as ``runtimes.planner.candidates`` applies them:

- ``balanced``: the fastest for the workload; no more slots than bring 2%.
- ``latency``: the shortest turn of a row by itself, whatever the workload; prefill may keep
  decoding rows waiting for 50 ms at a time.
- ``throughput``: the most tokens a second of the workload; prompts go in at once.
- ``memory``: the smallest of those that reach half of the best speed, with keys and values in 8
  bits where that is possible; four slots at the most.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from runtimes.errors import RequestError
from runtimes.models.modelfile import RuntimeName
from runtimes.settings import MOST_SLOTS, MOST_THREADS, RunnerSettings, SchedulerSettings, kv_pair

_T = TypeVar("_T")
PlanWorkload = Literal["chat", "batch"]
Profile = Literal["latency", "balanced", "throughput", "memory"]
WORKLOADS: tuple[PlanWorkload, ...] = ("chat", "batch")

PROMPT_TOKENS: dict[PlanWorkload, int] = {"chat": 256, "batch": 128}
OUTPUT_TOKENS = 128
# The depth where nobody says one. A server's requests are planned for as a batch.
DEPTHS = {"chat": 2048, "batch": 512, "serve": 1024}
# What a trial computes behind the depth: one timed prefill, long enough for every kernel's large
# tiles; and rows that decode some steps before they start again. Where the depth is less than
# SHORT_PROMPT, rows decode behind SHORT_PROMPT tokens.
TRIAL_PROMPT, SHORT_PROMPT, DECODE_STEPS = 128, 16, 24
TRIAL_TOKENS = max(TRIAL_PROMPT, SHORT_PROMPT + DECODE_STEPS) + 8  # of a slot's context
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
    samples of one figure, as a part of their median. ``measured_depth`` is the least depth of the
    samples; where the plan's is larger, they were extrapolated to it."""

    prefill_tps: float
    decode_tps: dict[int, float]
    scatter: float = 0.0
    measured_depth: int = 0

    def turn_s(self, workload: PlanWorkload = "chat") -> float:
        """Seconds of one row's prompt and answer with no other row beside it."""
        alone = self.decode_tps[min(self.decode_tps)] / min(self.decode_tps)
        return PROMPT_TOKENS[workload] / self.prefill_tps + OUTPUT_TOKENS / alone

    def job_tps(
        self, rows: int, prompt: float = PROMPT_TOKENS["batch"], answer: float = OUTPUT_TOKENS
    ) -> float:
        """Prompt and output tokens a second of a long job with ``rows`` rows together."""
        seconds = prompt / self.prefill_tps + answer / self._decode_at(rows)
        return (prompt + answer) / seconds

    def _decode_at(self, rows: int) -> float:
        """Tokens a second of rows, measured or not: a step's time lies on the line through the two
        nearest numbers of rows."""
        if rows in self.decode_tps or len(self.decode_tps) < 2:
            return self.decode_tps.get(rows) or min(self.decode_tps.values())
        near, next_ = sorted(self.decode_tps, key=lambda n: abs(n - rows))[:2]
        step, other = (n / self.decode_tps[n] for n in (near, next_))
        step += (other - step) * (rows - near) / (next_ - near)
        return rows / max(step, 0.5 * near / self.decode_tps[near])


@dataclass(frozen=True, slots=True)
class Alternative:
    """Candidate that was not chosen: its figures, or why it was not measured."""

    file: str
    runtime: RuntimeName
    settings: RunnerSettings
    figures: Figures | None = None
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the settings beside the other fields, for JSON."""
        return _flat(asdict(self), COMPARED)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Alternative:
        """The reverse; raises as ``Plan.from_json``."""
        values = _nested(data, COMPARED)
        values["figures"] = _figures(data["figures"]) if data["figures"] else None
        found = _made(cls, values)
        if not Path(found.file).name:
            raise ValueError("an alternative without a file")
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that an engine is loaded with."""

    workload: PlanWorkload
    profile: Profile
    runtime: RuntimeName
    path: str
    settings: RunnerSettings
    memory: int  # the estimate in bytes
    figures: Figures
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = field(default=(), repr=False)
    depth: int = 0  # tokens that stand in a row's cache, at the speeds of all figures

    def scheduling(self) -> SchedulerSettings:
        """How the engine schedules: the profile says how long prefill may hold decoding up."""
        return SchedulerSettings(max_stall_s=STALL_S[self.profile])

    @property
    def name(self) -> str:
        """The file's or the folder's name."""
        return Path(self.path).name

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``from_json`` reads: the settings beside the other fields."""
        alternatives = [one.to_json() for one in self.alternatives]
        return {**_flat(asdict(self), _PLANNED), "alternatives": alternatives}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The plan again; raises KeyError, TypeError or ValueError for anything else."""
        try:
            values = _nested(data, _PLANNED)
            if values["depth"] < 0:
                raise ValueError("a negative depth")
            values["figures"] = _figures(data["figures"])
            values["reasons"] = tuple(str(reason) for reason in data["reasons"])
            values["alternatives"] = tuple(map(Alternative.from_json, data["alternatives"]))
            return _made(cls, values)
        except (AttributeError, OverflowError) as error:
            raise ValueError(str(error)) from error


# The settings in which candidates differ, and those that a plan says.
COMPARED = "threads unified_kv kv_type gpu_layers device device_sampling".split()
_PLANNED = (
    "threads slots context batch kv_type unified_kv gpu_layers"
    " extra_buffers device device_sampling".split()
)


def _flat(data: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """``data`` with these of its settings in their place."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= {one: value[one] for one in names} if name == "settings" else {name: value}
    return flat


def _nested(data: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """``data`` with its settings under one name."""
    values = {name: value for name, value in data.items() if name not in names}
    settings = {name: data[name] for name in names if name in data}
    made = _made(RunnerSettings, settings)
    try:
        kv_pair(made.kv_type)
    except RequestError as error:
        raise ValueError(str(error)) from error
    for name, most in (("slots", MOST_SLOTS), ("threads", MOST_THREADS)):
        if not 1 <= (settings.get(name) or 1) <= most:
            raise ValueError(f"{name} is {settings[name]}")
    return {**values, "settings": made}


def _figures(data: dict[str, Any]) -> Figures:
    # JSON has made the numbers of rows into text.
    decode = {int(rows): _positive(tps) for rows, tps in data["decode_tps"].items()}
    if not decode or min(decode) < 1:
        raise ValueError("no figures of decoding")
    return _made(
        Figures,
        {
            "prefill_tps": _positive(data["prefill_tps"]),
            "decode_tps": decode,
            "scatter": float(data["scatter"]),
            "measured_depth": data["measured_depth"],
        },
    )


def _positive(value: Any) -> float:
    found = float(value)
    if not 0 < found < math.inf:
        raise ValueError(f"{found} tokens a second")
    return found


def _made(kind: type[_T], values: dict[str, Any]) -> _T:
    """An instance; raises ValueError unless each of ``values`` is what its field may hold."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        origin = get_origin(hints[name])
        found = value if origin is Literal else type(value)
        kinds = (origin,) if origin in (dict, tuple) else get_args(hints[name])
        if found not in (kinds or (hints[name],)):
            raise ValueError(f"{name} is of another kind")
    return kind(**values)
