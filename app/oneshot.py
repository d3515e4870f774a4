"""One prompt, one answer, streamed as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.figures import timings_json, usage_json
from app.prompts import PromptStyle, encode
from runtimes.engine import Engine
from runtimes.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion; ``interrupted`` when Ctrl-C ended it early."""

    completion: Completion
    interrupted: bool = False

    @property
    def failure(self) -> str | None:
        """What went wrong inside the engine, if something did."""
        if self.completion.finish_reason is FinishReason.CANCELLED and not self.interrupted:
            return "the engine stopped before the answer was complete"
        return self.completion.error


def ask(
    engine: Engine,
    prompt: str,
    style: PromptStyle,
    params: SamplingParams,
    emit: Callable[[str], None] | None,
) -> Answer:
    """Ask ``prompt`` and ``emit`` the answer piece by piece, with a line end at its end.

    Ctrl-C cancels it: what was generated so far is the answer. An error of ``emit``, such as a
    closed pipe, cancels it too and is raised.
    """
    ids = encode(engine, style, [{"role": "user", "content": prompt}])
    stream = engine.submit(Request(prompt=ids, params=params))
    interrupted = False
    last = ""
    try:
        for chunk in stream:
            if emit is not None:
                emit(chunk.text)
            last = chunk.text or last
    except KeyboardInterrupt:
        interrupted = True
    finally:
        stream.cancel()  # does nothing to a stream that has ended
    completion = stream.result()
    if emit is not None and (interrupted or not last.endswith("\n")):
        emit("\n")
    return Answer(completion, interrupted)


def result_json(completion: Completion, model: ModelFile) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    result: dict[str, Any] = {
        "text": completion.text,
        "finish_reason": str(completion.finish_reason),
        "usage": usage_json(completion.usage),
        "timings": timings_json(completion.timings),
        "model": {
            "name": model.name,
            "file": str(model.path),
            "architecture": model.architecture,
            "quantization": model.quantization,
            "bytes": model.nbytes,
        },
        "runtime": model.runtime,
    }
    if completion.error is not None:
        result["error"] = completion.error
    return result
