"""What keeping every row within a JSON schema costs beside the step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench.options import BenchOptions, median, rounded
from app.bench.work import Window, loaded, lockstep, random_prompts
from runtimes.request import Constraint, SamplingParams
from runtimes.settings import SchedulerSettings

_TOGETHER = SchedulerSettings(max_stall_s=None, prefix_cache=False)
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


@dataclass(frozen=True, slots=True)
class ConstrainedResult:
    """Rows in lockstep, a sample a round: free, and within a JSON schema."""

    rows: int
    decode_tokens: int
    free: list[Window]
    held: list[Window]

    @property
    def cost(self) -> float:
        """The share of the speed that is lost, by the median of the rounds."""
        pairs = zip(self.held, self.free, strict=True)
        return 1 - median([held.wall_tps / free.wall_tps for held, free in pairs])

    @property
    def host_cost(self) -> float:
        """How much more of a step is outside the native library: steadier than the speed."""
        shares = [median([w.host_share for w in windows]) for windows in (self.held, self.free)]
        return shares[0] - shares[1]

    def to_json(self) -> dict[str, Any]:
        """Every sample."""
        return {
            "rows": self.rows,
            "decode_tokens": self.decode_tokens,
            "free_tps": rounded([window.wall_tps for window in self.free]),
            "constrained_tps": rounded([window.wall_tps for window in self.held]),
            "free_host_share": rounded([window.host_share for window in self.free]),
            "constrained_host_share": rounded([window.host_share for window in self.held]),
            "cost": round(self.cost, 4),
            "host_cost": round(self.host_cost, 4),
        }

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.rows} rows: {median([w.wall_tps for w in self.free]):.1f} tok/s free, "
            f"{median([w.wall_tps for w in self.held]):.1f} within a JSON schema: "
            f"{100 * self.cost:.1f}% slower; {100 * self.host_cost:.2f}% more of a step is outside "
            "the native library"
        ]


def constrained(path: Path, options: BenchOptions) -> ConstrainedResult:
    """Both in turn, ``options.repeats`` rounds."""
    need = options.prompt_tokens + options.decode_tokens + 1
    within = SamplingParams(constraint=Constraint("json_schema", json.dumps(_SCHEMA)))
    free: list[Window] = []
    held: list[Window] = []
    with loaded(path, options.settings(need), _TOGETHER) as engine:
        for seed in range(-1, options.repeats):
            prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
            if seed < 0:  # the first one compiles the schema
                lockstep(engine, prompts, 2, within)
                continue
            free.append(lockstep(engine, prompts, options.decode_tokens))
            held.append(lockstep(engine, prompts, options.decode_tokens, within))
    return ConstrainedResult(options.rows, options.decode_tokens, free, held)
