"""Checks of `ingot doctor --verify`, each on a model file and a device: answers that are the
processor's, a worker that comes back, room after a cancelled request; memory, speed and the
planner's choice, measured by the benchmarks' own functions."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import psutil

from app.bench.estimates import memory_check, regret
from app.bench.frame import TOGETHER, Samples, encoded, greedy, loaded, random_prompts, run
from app.bench.jobs import AnswerParting, compare
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.machine.gpus import GpuWatch, tokens_per_joule
from runtimes.machine.selftest import Health
from runtimes.models.modelfile import ModelFile
from runtimes.models.registry import backend_of
from runtimes.planner.plan import PlanWorkload
from runtimes.request import Completion, FinishReason, Request
from runtimes.settings import RunnerSettings, SchedulerSettings
from runtimes.stream import Stream
from runtimes.worker.engine import WorkerEngine
from runtimes.worker.recovery import FORGET

PROCESSOR = "cpu"  # the device that others are compared with
ROWS = 8  # that run together
CONTEXT = 512  # tokens of a slot
Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check's verdict, the reason in words, and the figures for programs."""

    verdict: Verdict
    said: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CheckLine:
    """One check, as the report for programs has it, with its result once there is one."""

    check: str
    runtime: str = ""  # for people; a part that a check is not about is empty
    device: str = ""
    file: str = ""  # the model file's or the folder's name, without where it is
    verdict: Verdict = "skipped"
    found: str = "interrupted"
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


def skipped(why: str) -> CheckResult:
    """A check that cannot be done here."""
    return CheckResult("skipped", why)


def counts(lines: list[CheckLine]) -> dict[Verdict, int]:
    """Number of lines with each verdict."""
    return {name: sum(line.verdict == name for line in lines) for name in get_args(Verdict)}


@dataclass(frozen=True, slots=True)
class VerifyTarget:
    """A model file on a device, as ``RunnerSettings.device`` names it."""

    model: ModelFile
    device: str

    def settings(self, slots: int) -> RunnerSettings:
        """A runner for so many rows together, all layers on the device."""
        layers = 0 if self.device == PROCESSOR else -1
        return RunnerSettings(slots=slots, context=CONTEXT, device=self.device, gpu_layers=layers)

    @contextmanager
    def engine(
        self, slots: int, scheduling: SchedulerSettings | None = None
    ) -> Iterator[WorkerEngine]:
        """An engine in a worker process. Raises IngotError in the end as ``require_device``."""
        with WorkerEngine.load(self.model.path, self.settings(slots), scheduling) as engine:
            yield engine
            self.require_device(engine)

    def require_device(self, engine: EngineApi) -> None:
        """Raise IngotError for an engine that computes nothing on the device: after crashes a
        worker leaves it, also a later one, and what it does then says nothing of the device."""
        if self.device != PROCESSOR and not engine.stats().gpu_layers:
            raise IngotError(
                f"no layer is on {self.device}: there is no room, or it crashed there before"
                f" (`{FORGET}` has it tried again)"
            )

    def line(self, check: str) -> CheckLine:
        """The line of a check on it."""
        return CheckLine(check, backend_of(self.model).label, self.device, self.model.path.name)


def devices(health: Health) -> tuple[str, ...]:
    """Devices on which a runtime can run a model."""
    return (PROCESSOR, *(one.name for one in health.devices))


PROMPTS = (
    "What is the capital of France?",
    "Tell me a story about a fox.",
    "What is 12 + 30?",
    "Name three colours.",
    "Once upon a time there was",
    "The sun rises in the",
)
_TOKENS = 24  # of an answer
# How far log-probabilities may move when sums are made in another order, natural logarithm:
# llama.cpp's K-quants, whose rows are grouped by their number, move by up to 0.26 on Pebble.
_ROUNDING = 0.35


def answers(target: VerifyTarget) -> CheckResult:
    """Rows together on the device against the same rows one at a time on the processor.

    They may part only where the two likeliest tokens are as near as rounding moves them.
    """
    reference = greedy_answers(VerifyTarget(target.model, PROCESSOR), 1)
    return judge(reference, greedy_answers(target, len(PROMPTS)))


def judge(reference: list[Completion], done: list[Completion]) -> CheckResult:
    """``done`` against ``reference``; both have log-probabilities."""
    found = compare(reference, done)
    parted = {one.answer: one for one in found.partings}
    pairs = enumerate(zip(reference, done, strict=True))
    moved = [apart for i, (a, b) in pairs for apart in _apart(a, b, parted.get(i))]
    furthest = math.nan if any(map(math.isnan, moved)) else max(moved, default=0.0)
    wrong = [one for one in found.partings if not one.gap <= _ROUNDING]
    said = [
        f"{found.equal} of {found.answers} answers equal",
        f"log-probabilities of equal tokens within {furthest:.2g}",
        *(
            f"answer {one.answer + 1} parts{'' if one in wrong else ' at a near-tie'} at token"
            f" {one.token + 1}: {one.gap:.2g} between the two likeliest"
            for one in found.partings
        ),
    ]
    figures = asdict(found) | {
        "equal": found.equal,
        "tokens": _TOKENS,
        "rounding_allowed": _ROUNDING,
        "logprobs_moved": furthest if math.isfinite(furthest) else None,
    }
    good = not wrong and furthest <= _ROUNDING  # not so for NaN
    return CheckResult("passed" if good else "failed", "; ".join(said), figures)


def greedy_answers(target: VerifyTarget, slots: int) -> list[Completion]:
    """Answers to every prompt, as long as they get; with one slot one after the other."""
    with target.engine(slots, TOGETHER) as engine:
        params = replace(greedy(_TOKENS, top_logprobs=2), logprobs=True)
        prompts = [encoded(engine, text) for text in PROMPTS]
        return run(engine, prompts, [params] * len(PROMPTS))


def _apart(reference: Completion, done: Completion, parting: AnswerParting | None) -> list[float]:
    """Changes of the log-probability of each token, up to where the two part.

    Raises IngotError for an answer without log-probabilities.
    """
    if not reference.logprobs or not done.logprobs:
        raise IngotError("an answer came without log-probabilities: there is nothing to compare")
    pairs = zip(reference.logprobs, done.logprobs, strict=True)
    return [abs(a - b) for a, b in pairs][: parting.token if parting else None]


_ANSWER_TOKENS = 16
_TRIES = 4


def restart(target: VerifyTarget) -> CheckResult:
    """Kill the worker in the middle of an answer; the next one must be as before."""
    with target.engine(1) as engine:
        prompt = encoded(engine, PROMPTS[0])
        before = _answer(engine, prompt)
        running = _begun(engine, prompt)
        if engine.pid is None:
            raise IngotError("the worker was gone before it was killed")
        psutil.Process(engine.pid).kill()
        lost = running.result()
        after = _answer(engine, prompt)
        figures = {"deaths": engine.deaths, "killed_request": str(lost.finish_reason)}
        if engine.deaths < 1 or after.token_ids != before.token_ids:
            said = f"{engine.deaths} deaths were noticed; the answer afterwards was another one"
            return CheckResult("failed", said, figures)
    return CheckResult("passed", "the worker was killed, started again, answered the same", figures)


def cancel(target: VerifyTarget) -> CheckResult:
    """Cancel the request that has the only slot; the next one must get it."""
    with target.engine(1) as engine:
        prompt = encoded(engine, PROMPTS[0])
        for _ in range(_TRIES):
            running = _begun(engine, prompt)
            running.cancel()
            if running.result().finish_reason is FinishReason.CANCELLED:
                break
        else:
            return skipped(f"{_TRIES} answers had ended before they could be cancelled")
        figures = {"tokens_after": len(_answer(engine, prompt).token_ids)}
        return CheckResult("passed", "a cancelled request made room for the next", figures)


def _begun(engine: EngineApi, prompt: list[int]) -> Stream:
    """An answer that takes as long as there is room, once its first piece is there."""
    stream = engine.submit(Request(prompt, greedy(engine.context - len(prompt))))
    next(iter(stream), None)
    return stream


def _answer(engine: EngineApi, prompt: list[int]) -> Completion:
    """An answer, asked again where the process died before it had the request.

    Raises IngotError when it does not come.
    """
    for _ in range(_TRIES):
        done = engine.submit(Request(prompt, greedy(_ANSWER_TOKENS))).result()
        if not done.retryable:
            break
    if done.finish_reason is not FinishReason.LENGTH:
        raise IngotError(f"no answer came: {done.error or done.finish_reason}")
    return done


# NVIDIA GPUs while rows decoded, for the report and for people.


def gpu_figures(watch: GpuWatch, tps: float) -> list[dict[str, Any]]:
    """The means of each GPU, and the tokens a joule at ``tps`` tokens a second."""
    return [
        {
            "name": use.name,
            "percent": use.percent,
            "watts": use.watts,
            "memory_used_bytes": use.memory_used,
            "tokens_per_joule": tokens_per_joule(tps, use.watts),
        }
        for use in watch.uses.values()
    ]


def gpu_words(watch: GpuWatch, tps: float) -> str:
    """Words on the GPUs for people; empty without a GPU that tells."""
    return "".join(
        f" (GPU {one['percent']:.0f}% busy, {one['watts']:.0f} W,"
        f" {one['tokens_per_joule']:.1f} tokens/J)"
        for one in gpu_figures(watch, tps)
        if one["percent"] is not None and one["watts"]
    )


# Off by so much of what was measured, or by so few bytes: of a tiny model the libraries' own few
# MiB are most of it.
_MEMORY, _MEMORY_BYTES = 0.10, 8 * 2**20
_PREFILL, _BEHIND, _DECODE = 128, 4, 32  # tokens: a timed prompt, one to decode behind, and those
_SAMPLES_S, _MOST_SAMPLES = 1.5, 10
_REGRET = 0.05
_BUSY = 0.1  # what others take of the processor before figures of speed say little


def memory(target: VerifyTarget) -> CheckResult:
    """The estimate against what a process takes that has every slot full."""
    if target.device != PROCESSOR:
        return skipped("only what a process takes of the machine's memory is measured")
    if not Path("/proc/self").is_dir():
        return skipped("memory is measured through /proc, which this system lacks")
    (row,) = memory_check(target.model.path, [target.settings(ROWS)])
    estimated, ratio = row.estimate.total, row.estimate.total / row.measured
    good = abs(row.error) <= _MEMORY or abs(estimated - row.measured) <= _MEMORY_BYTES
    told = [f"{count / 2**20:,.1f} MiB" for count in (estimated, row.measured, row.resident)]
    said = f"estimated {told[0]}, measured {told[1]}: ratio {ratio:.2f}; resident {told[2]}"
    figures = {
        "slots": ROWS,
        "context": CONTEXT,
        "estimate": row.estimate.to_json(),
        "measured_bytes": row.measured,
        "resident_bytes": row.resident,
        "ratio": ratio,
    }
    return CheckResult("passed" if good else "failed", said, figures)


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
        row = f"decode {decode:,.0f} tok/s with {rows} row{'s' * (rows > 1)}"
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
    """Part of the best score of all that was timed that the planner gives away.

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
