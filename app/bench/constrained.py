"""What keeping every row within a JSON schema costs beside the step."""

import json
from functools import partial
from pathlib import Path

from app.bench.harness import BenchOptions, BenchResult, in_turn
from app.bench.work import TOGETHER, host_shares, loaded, lockstep_rows, wall_tps
from runtimes.request import Constraint, SamplingParams

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


def constrained(path: Path, options: BenchOptions) -> BenchResult:
    """Rows in lockstep, free and within the schema in turn; the warm-up compiles the schema."""
    within = SamplingParams(constraint=Constraint("json_schema", json.dumps(_SCHEMA)))
    with loaded(path, options.settings(), TOGETHER) as engine:
        sides = {
            "free": partial(lockstep_rows, engine, options),
            "constrained": partial(lockstep_rows, engine, options, params=within),
        }
        free, held = in_turn(sides, options.repeats, warm_up=True).values()
    free_tps, held_tps = wall_tps(free), wall_tps(held)
    cost = 1 - (held_tps / free_tps).median  # the share of the speed that is lost
    # How much more of a step is outside the native library: steadier than the speed.
    host_cost = host_shares(held).median - host_shares(free).median
    figures = {
        "rows": options.rows,
        "decode_tokens": options.decode_tokens,
        "free_tps": free_tps,
        "constrained_tps": held_tps,
        "free_host_share": host_shares(free),
        "constrained_host_share": host_shares(held),
        "cost": cost,
        "host_cost": host_cost,
    }
    line = (
        f"{options.rows} rows: {free_tps:.1f} tok/s free, {held_tps:.1f} within a JSON schema: "
        f"{cost:.1%} slower; {host_cost:.2%} more of a step is outside the native library"
    )
    return BenchResult(figures, [line])
