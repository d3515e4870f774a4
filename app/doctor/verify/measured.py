"""Memory, speed and the planner's choice, measured by the benchmarks' own functions."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from app.bench.estimates import memory_check, regret
from app.bench.frame import Samples
from app.bench.work import TOGETHER, greedy, loaded, random_prompts, run
from app.doctor.verify.answers import gpu_figures, gpu_words
from app.doctor.verify.target import (
    CONTEXT,
    PROCESSOR,
    ROWS,
    CheckResult,
    Skip,
    Verdict,
    VerifyTarget,
)
from runtimes.api import EngineApi
from runtimes.machine.gpus import GpuWatch
from runtimes.planner.plan import PlanWorkload

# Off by so much of what was measured, or by so few bytes: of a tiny model the libraries' own few
# MiB are most of it.
_MEMORY, _MEMORY_BYTES = 0.10, 8 * 2**20
_PREFILL, _BEHIND, _DECODE = 128, 4, 32  # tokens: a timed prompt, one to decode behind, and those
_SAMPLES_S, _MOST_SAMPLES = 1.5, 10
_REGRET = 0.05
_PROC = Path("/proc/self")
_BUSY = 0.1  # what others take of the processor before figures of speed say little


def memory(target: VerifyTarget) -> CheckResult:
    """The estimate against what a process takes that has every slot full."""
    if target.device != PROCESSOR:
        raise Skip("only what a process takes of the machine's memory is measured")
    if not _PROC.is_dir():
        raise Skip("memory is measured through /proc, which this system lacks")
    (row,) = memory_check(target.model.path, [target.settings(ROWS)])
    estimated, ratio = row.estimate.total, row.estimate.total / row.measured
    good = abs(row.error) <= _MEMORY or abs(estimated - row.measured) <= _MEMORY_BYTES
    said = (
        f"estimated {_mib(estimated)}, measured {_mib(row.measured)}: ratio {ratio:.2f};"
        f" resident {_mib(row.resident)}"
    )
    figures = {
        "slots": ROWS,
        "context": CONTEXT,
        "estimate": row.estimate.to_json(),
        "measured_bytes": row.measured,
        "resident_bytes": row.resident,
        "ratio": ratio,
    }
    return CheckResult("passed" if good else "failed", said, figures)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def speed(target: VerifyTarget) -> CheckResult:
    """Tokens a second of one prompt's prefill, and of decode with one row and with several; what
    GPUs did while rows decoded."""
    path, said = target.model.path, []
    figures: dict[str, object] = {"prompt_tokens": _PREFILL, "decode_tokens": _DECODE}
    for rows in (1, ROWS):
        with loaded(path, target.settings(rows), TOGETHER, worker=True) as engine:
            if rows == 1:
                prefill = _samples(engine, _prefill_tps)
                figures["prefill_tps"] = prefill
                said.append(f"prefill {prefill:,.0f} tok/s")
            with GpuWatch() as watch:
                decode = _samples(engine, _decode_tps)
            target.require_device(engine)
            figures["gpu_layers"] = engine.stats().gpu_layers
        figures[f"decode_tps_{rows}"] = decode
        figures[f"gpus_{rows}"] = gpu_figures(watch, decode.median)
        row = f"decode {decode:,.0f} tok/s with {rows} row{'s' if rows > 1 else ''}"
        said.append(row + gpu_words(watch, decode.median))
    return CheckResult("passed", "; ".join(said), figures)


def _samples(engine: EngineApi, sample: Callable[[EngineApi, int], float]) -> Samples:
    begin, taken = time.monotonic(), Samples()
    while not taken or (len(taken) < _MOST_SAMPLES and time.monotonic() - begin < _SAMPLES_S):
        taken.append(sample(engine, len(taken)))
    return taken


def _prefill_tps(engine: EngineApi, seed: int) -> float:
    (done,) = run(engine, random_prompts(engine, [_PREFILL], seed), [greedy(1)])
    return _PREFILL / done.timings.prefill_s


def _decode_tps(engine: EngineApi, seed: int) -> float:
    """The row that had its first token last decoded from the first common step to the last."""
    rows = engine.slots
    prompts = random_prompts(engine, [_BEHIND] * rows, seed)
    done = run(engine, prompts, [greedy(_DECODE + 1)] * rows)
    return rows * _DECODE / min(one.timings.decode_s for one in done)


def planner(model: str, workload: PlanWorkload, others: float) -> CheckResult:
    """What the planner gives away against the best of all that was timed.

    ``others`` is the share of the processor that other programs take: where that is much, or the
    samples scatter, a bad figure proves nothing.
    """
    figures = regret(model, workload, 1).figures
    pick, best = figures["pick"], figures["best"]
    given_away: float = figures["regret"]
    about = pick["candidate"]
    settings = f"{pick['slots']} slots, {about['threads']} threads"
    said = f"{workload}: {about['file']}, {settings}; regret {given_away:.1%}"
    kept = {name: figures[name] for name in ("workload", "profile", "regret", "pick", "best")}
    kept["timed"] = len(figures["points"])
    parts = Samples(pick["samples"]) / Samples(best["samples"])
    verdict = judge_regret(given_away, parts, others)
    if verdict == "skipped":
        said += ": the machine was too busy to tell"
    return CheckResult(verdict, said, kept)


def judge_regret(given_away: float, parts: Samples, others: float) -> Verdict:
    """``parts`` is what the pick reached of the best, round by round; ``others`` as above."""
    if given_away <= _REGRET:
        return "passed"
    error = statistics.stdev(parts) / len(parts) ** 0.5
    # Within two standard errors it may be as good as it has to be.
    return "skipped" if others > _BUSY or given_away - 2 * error <= _REGRET else "failed"
