"""Checks of answers: whether a device's are the processor's, and whether a worker that dies comes
back."""

import math
from dataclasses import asdict, replace
from typing import Any

import psutil

from app.bench.jobs import AnswerParting, compare
from app.bench.work import greedy, run
from app.doctor.verify.target import PROCESSOR, CheckResult, Skip, VerifyTarget
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.machine.gpus import GpuWatch, tokens_per_joule
from runtimes.request import Completion, FinishReason, Request
from runtimes.settings import SchedulerSettings
from runtimes.worker.engine import WorkerEngine

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
    ]
    for one in found.partings:
        kind = "" if one in wrong else " at a near-tie"
        said.append(
            f"answer {one.answer + 1} parts{kind} at token {one.token + 1}:"
            f" {one.gap:.2g} between the two likeliest"
        )
    figures = {
        "answers": found.answers,
        "equal": found.equal,
        "tokens": _TOKENS,
        "rounding_allowed": _ROUNDING,
        "logprobs_moved": furthest if math.isfinite(furthest) else None,
        "partings": [asdict(one) for one in found.partings],
    }
    good = not wrong and furthest <= _ROUNDING  # not so for NaN
    return CheckResult("passed" if good else "failed", "; ".join(said), figures)


def greedy_answers(target: VerifyTarget, slots: int) -> list[Completion]:
    """Of every prompt, as long as it gets; with one slot one after the other."""
    scheduling = SchedulerSettings(max_stall_s=None, prefix_cache=False)
    path, settings = target.model.path, target.settings(slots)
    with WorkerEngine.load(path, settings, scheduling) as engine:
        params = replace(greedy(_TOKENS, top_logprobs=2), logprobs=True)
        prompts = [encode(engine, text) for text in PROMPTS]
        done = run(engine, prompts, [params] * len(PROMPTS))
        target.require_device(engine)
        return done


def encode(engine: EngineApi, text: str) -> list[int]:
    """Tokens of a question, through the model's chat template where it has one."""
    if engine.model.chat_template is None:
        return engine.encode(text)
    return engine.encode_chat([{"role": "user", "content": text}])


def _apart(reference: Completion, done: Completion, parting: AnswerParting | None) -> list[float]:
    """How far the log-probability of each token has moved, up to where the two part.

    Raises IngotError for an answer without log-probabilities.
    """
    if not reference.logprobs or not done.logprobs:
        raise IngotError("an answer came without log-probabilities: there is nothing to compare")
    pairs = zip(reference.logprobs, done.logprobs, strict=True)
    return [abs(a - b) for a, b in pairs][: parting.token if parting else None]


_ANSWER_TOKENS = 16
_TRIES = 4


# Whether a worker that dies comes back, and a cancelled request makes room.


def restart(target: VerifyTarget) -> CheckResult:
    """Kill the worker in the middle of an answer; the next one must be as before."""
    with WorkerEngine.load(target.model.path, target.settings(1)) as engine:
        prompt = encode(engine, PROMPTS[0])
        before = _answer(engine, prompt)
        running = engine.submit(_long(engine, prompt))
        next(iter(running), None)
        if engine.pid is None:
            raise IngotError("the worker was gone before it was killed")
        psutil.Process(engine.pid).kill()
        lost = running.result()
        after = _answer(engine, prompt)
        target.require_device(engine)
        figures = {"deaths": engine.deaths, "killed_request": str(lost.finish_reason)}
        if engine.deaths < 1 or after.token_ids != before.token_ids:
            said = f"{engine.deaths} deaths were noticed; the answer afterwards was another one"
            return CheckResult("failed", said, figures)
    return CheckResult(
        "passed", "the worker was killed, started again and answered the same", figures
    )


def cancel(target: VerifyTarget) -> CheckResult:
    """Cancel the request that has the only slot; the next one must get it."""
    with WorkerEngine.load(target.model.path, target.settings(1)) as engine:
        prompt = encode(engine, PROMPTS[0])
        for _ in range(_TRIES):
            running = engine.submit(_long(engine, prompt))
            next(iter(running), None)
            running.cancel()
            if running.result().finish_reason is FinishReason.CANCELLED:
                break
        else:
            raise Skip(f"{_TRIES} answers had ended before they could be cancelled")
        tokens = len(_answer(engine, prompt).token_ids)
        target.require_device(engine)
        return CheckResult(
            "passed", "a cancelled request made room for the next", {"tokens_after": tokens}
        )


def _long(engine: WorkerEngine, prompt: list[int]) -> Request:
    """A request that takes as long as there is room."""
    return Request(prompt, greedy(engine.context - len(prompt)))


def _answer(engine: WorkerEngine, prompt: list[int]) -> Completion:
    """Asked again where the process died before it had the request.

    Raises IngotError when it does not come.
    """
    for _ in range(_TRIES):
        done = engine.submit(Request(prompt, greedy(_ANSWER_TOKENS))).result()
        if not done.retryable:
            break
    if done.finish_reason is not FinishReason.LENGTH:
        raise IngotError(f"no answer came: {done.error or done.finish_reason}")
    return done


# What NVIDIA GPUs did while rows decoded, for the report and for people.


def gpu_figures(watch: GpuWatch, tps: float) -> list[dict[str, Any]]:
    """Of each GPU the means, and the tokens a joule at ``tps`` tokens a second."""
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
    """The same for people; empty without a GPU that tells."""
    return "".join(
        f" (GPU {one['percent']:.0f}% busy, {one['watts']:.0f} W,"
        f" {one['tokens_per_joule']:.1f} tokens/J)"
        for one in gpu_figures(watch, tps)
        if one["percent"] is not None and one["watts"]
    )
