"""What keeping every row within a JSON schema costs beside the step."""

import json
from pathlib import Path

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


def constrained(path: Path, options: BenchOptions) -> Result:
    """Rows in lockstep, free and within the schema in turn, ``options.repeats`` rounds."""
    need = options.prompt_tokens + options.decode_tokens + 1
    within = SamplingParams(constraint=Constraint("json_schema", json.dumps(_SCHEMA)))
    free: list[Window] = []
    held: list[Window] = []
    with loaded(path, options.settings(need), TOGETHER) as engine:
        for seed in range(-1, options.repeats):
            prompts = random_prompts(engine, [options.prompt_tokens] * options.rows, seed)
            if seed < 0:  # the first one compiles the schema
                lockstep(engine, prompts, 2, within)
                continue
            free.append(lockstep(engine, prompts, options.decode_tokens))
            held.append(lockstep(engine, prompts, options.decode_tokens, within))
    free_tps, held_tps = wall_tps(free), wall_tps(held)
    cost = 1 - paired(held_tps, free_tps)  # the share of the speed that is lost
    # How much more of a step is outside the native library: steadier than the speed.
    host_cost = median(host_shares(held)) - median(host_shares(free))
    figures = {
        "rows": options.rows,
        "decode_tokens": options.decode_tokens,
        "free_tps": rounded(free_tps),
        "constrained_tps": rounded(held_tps),
        "free_host_share": rounded(host_shares(free)),
        "constrained_host_share": rounded(host_shares(held)),
        "cost": round(cost, 4),
        "host_cost": round(host_cost, 4),
    }
    line = (
        f"{options.rows} rows: {median(free_tps):.1f} tok/s free, "
        f"{median(held_tps):.1f} within a JSON schema: {100 * cost:.1f}% slower; "
        f"{100 * host_cost:.2f}% more of a step is outside the native library"
    )
    return Result(figures, [line])
