"""Whether a worker that dies comes back, and a cancelled request makes room."""

import psutil

from app.bench.work import greedy
from app.doctor.verify.answers import PROMPTS, encode
from app.doctor.verify.lines import CheckResult, Skip
from app.doctor.verify.target import VerifyTarget
from runtimes.errors import IngotError
from runtimes.request import Completion, FinishReason, Request
from runtimes.worker.engine import WorkerEngine

_TOKENS = 16
_TRIES = 4


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
        done = engine.submit(Request(prompt, greedy(_TOKENS))).result()
        if not done.retryable:
            break
    if done.finish_reason is not FinishReason.LENGTH:
        raise IngotError(f"no answer came: {done.error or done.finish_reason}")
    return done
