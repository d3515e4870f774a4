"""Answer of `ingot run` to one prompt, streamed as it comes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.figures import timings_json, usage_json
from app.openai.prepare import prepare
from app.openai.task import Task
from app.prompts import PromptStyle
from runtimes.api import EngineApi
from runtimes.models.modelfile import ModelFile
from runtimes.request import Completion, FinishReason, SamplingParams

# A worker process that dies may die once more before it is started with safer settings.
_RETRIES = 2


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """A completion; ``interrupted`` when Ctrl-C ended it early."""

    completion: Completion
    interrupted: bool = False

    @property
    def failure(self) -> str | None:
        """Error inside the engine, if there was one."""
        if self.completion.finish_reason is FinishReason.CANCELLED and not self.interrupted:
            return "the engine stopped before the answer was complete"
        return self.completion.error


def ask(
    engine: EngineApi,
    prompt: str,
    style: PromptStyle,
    params: SamplingParams,
    adapter: str | None,
    emit: Callable[[str], None] | None,
    think: Callable[[str], None] | None,
    suffix: str | None = None,
) -> OneAnswer:
    """Ask ``prompt``, or for what stands between it and ``suffix``, and ``emit`` the answer piece
    by piece, with a line end at its end; ``think`` takes the pieces of a thought before it.

    Ctrl-C cancels it: what was generated so far is the answer. An error of ``emit``, such as a
    closed pipe, cancels it too and is raised. A request that the engine lost before anything was
    emitted is asked again.
    """
    said = prepare(Task(turns=(prompt,), suffix=suffix), engine, params, style)
    for _ in range(1 + _RETRIES):
        stream = engine.submit(said.request(adapter=adapter, followed=False))
        interrupted, shown, thought = False, "", False
        try:
            for chunk in stream:
                if chunk.thought:
                    thought = True
                    if think is not None:
                        think(chunk.text)
                    continue
                if thought and think is not None:
                    think("\n\n")
                thought = False
                if emit is not None:
                    emit(chunk.text)
                    shown = chunk.text or shown
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stream.cancel()  # does nothing to a stream that has ended
        completion = stream.result()
        # Asked again only as long as nobody has seen a part of it.
        if shown or interrupted or not completion.retryable:
            break
    if emit is not None and (interrupted or not shown.endswith("\n")):
        emit("\n")
    return OneAnswer(completion, interrupted)


def result_json(completion: Completion, model: ModelFile, adapter: str | None) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    result: dict[str, Any] = {
        "text": completion.text,
        "finish_reason": str(completion.finish_reason),
        **({} if completion.thought is None else {"reasoning": completion.thought}),
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
    if adapter is not None:
        result["adapter"] = adapter
    if completion.error is not None:
        result["error"] = completion.error
    return result
