"""Whether a device's answers are the processor's."""

import math
from dataclasses import asdict, replace

from app.bench.jobs import AnswerParting, compare
from app.bench.work import greedy, run
from app.doctor.verify.lines import CheckResult
from app.doctor.verify.target import PROCESSOR, VerifyTarget
from runtimes.api import EngineApi
from runtimes.errors import IngotError
from runtimes.request import Completion
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
